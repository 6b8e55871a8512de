"""The grammar of Lakefork's SQL: a text in, a list of frozen statements out."""

from collections.abc import Callable
from typing import Any, NoReturn

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.sql.definitions import DefinitionParser
from lakefork.sql.dialect import DIALECT, MAX_TEXT, QUERY_STARTS, PlacedError, SqlSyntaxError, read, syntax_errors
from lakefork.sql.rules import Rule, parse_rule
from lakefork.sql.statements import (
    AlterNamespace,
    AlterTable,
    CreateNamespace,
    CreateTable,
    Delete,
    DescribeTable,
    DropNamespace,
    DropTable,
    Explain,
    FlushTable,
    Insert,
    OptionValue,
    Page,
    Select,
    ShowManifestCache,
    ShowNamespaces,
    ShowTables,
    ShowTableStats,
    Statement,
    TableKind,
    TableName,
    Update,
)

__all__ = [
    "MAX_TEXT",
    "Rule",
    "SqlSyntaxError",
    "is_default",
    "parse",
    "parse_rule",
    "table_name",
    "time_travel",
]

KNOWN = "SELECT, INSERT, UPDATE, DELETE, EXPLAIN, CREATE, ALTER, DROP, SHOW, DESCRIBE and FLUSH are"
CHANGES_ROWS = frozenset({TokenType.INSERT, TokenType.UPDATE, TokenType.DELETE})
CLAUSES = frozenset(
    {
        TokenType.RETURNING,
        TokenType.ON,
        TokenType.ORDER_BY,
        TokenType.LIMIT,
        TokenType.OFFSET,
        TokenType.USING,
        TokenType.FROM,
        TokenType.WITH,
    }
)


def parse(text: str) -> list[Statement]:
    """The statements of a text, in order; SqlSyntaxError names what is wrong and where."""
    with syntax_errors(text):
        parser = StatementParser(dialect=DIALECT)
        return [parser.statement(tokens, text) for tokens in read(text)]


def is_default(expression: exp.Expression) -> bool:
    """Whether a value of INSERT or UPDATE is the word DEFAULT."""
    return isinstance(expression, exp.Var) and expression.name == "DEFAULT"


def time_travel(table: exp.Table) -> tuple[str, exp.Expression] | None:
    """ "version" or "timestamp" and its expression, where the table is followed by AT (…)."""
    when = table.args.get("when")
    return (when.args["kind"].lower(), when.expression) if when else None


def table_name(node: exp.Table) -> TableName:
    """The name as written, without quotes."""
    namespace, name = node.args.get("db"), node.this
    if node.args.get("catalog") or not isinstance(name, exp.Identifier) or not name.name:
        raise SqlSyntaxError("expected a table name of at most two parts")
    return TableName(namespace.name if namespace else None, name.name)


class StatementParser(DefinitionParser):
    """One statement at a time; AS USER is taken out of its tokens before anything could read it as an alias."""

    source = ""
    as_user: str | None = None
    _user_place: tuple[int, Token] | None = None

    def statement(self, tokens: list[Token], text: str) -> Statement:
        self.source = text[tokens[0].start : tokens[-1].end + 1]
        try:
            self.load(self._without_user(tokens), text)
            found = self._dispatch()
            self.finish()
            self.check_depth()
        except RecursionError:
            raise PlacedError("the statement is nested too deeply", tokens[0].start) from None
        return found

    def _without_user(self, tokens: list[Token]) -> list[Token]:
        places = _user_clauses(tokens)
        self.as_user = self._user_place = None
        if not places:
            return tokens
        first = places[0]
        if tokens[0].token_type not in CHANGES_ROWS:
            raise PlacedError("AS USER belongs to INSERT, UPDATE and DELETE", tokens[first].start)
        if len(places) > 1:
            raise PlacedError("AS USER is given twice", tokens[places[1]].start)
        self.as_user = tokens[first + 2].text
        if not self.as_user:
            raise PlacedError("AS USER needs a user, found ''", tokens[first + 2].start)
        self._user_place = (first, tokens[first])
        return tokens[:first] + tokens[first + 3 :]

    def _user_may_stand_here(self) -> None:
        if self._user_place and self._user_place[0] == self._index:
            self._user_place = None

    def _dispatch(self) -> Statement:
        token = self._curr
        if token.token_type in QUERY_STARTS or token.token_type == TokenType.L_PAREN:
            return Select(text=self.source, query=self._whole_query())
        method = STATEMENTS.get(self.word())
        if method is None:
            if self.word():
                self.fail(f"{self.word()} is not supported; {KNOWN}")
            self.expected("a statement")
        self._advance()
        return method(self)

    def _refuse(self, verb: str, makes: str) -> NoReturn:
        word = self.word()
        if not word:
            self.expected(makes)
        if word == "OR":
            word = f"OR {self._next.text.upper()}".strip()
        self.fail(f"{verb} {word} is not supported; expected {makes}")

    def _kind(self) -> TableKind | None:
        word = self.word()
        if word not in TableKind.__members__ or self._next.token_type != TokenType.TABLE:
            return None
        self._advance()
        return TableKind[word]

    def _create(self) -> Statement:
        if self._match(TokenType.NAMESPACE):
            return self._create_namespace()
        kind = self._kind()
        if not self._match(TokenType.TABLE):
            self._refuse("CREATE", "NAMESPACE or [USER | SHARED | STREAM] TABLE")
        return self._create_table(kind)

    def _create_namespace(self) -> CreateNamespace:
        exists = self._match_text_seq("IF", "NOT", "EXISTS")
        name = self.name("a namespace name")
        options: dict[str, OptionValue] = {}
        if self._match(TokenType.WITH):
            self.expect("OPTIONS")
            options = self.options()
        elif self._match_text_seq("OPTIONS"):
            options = self.options()
        return CreateNamespace(text=self.source, name=name, if_not_exists=exists, options=options)

    def _create_table(self, kind: TableKind | None) -> CreateTable:
        exists = self._match_text_seq("IF", "NOT", "EXISTS")
        name = self.table_name()
        columns, key = self.column_list()
        return CreateTable(
            text=self.source,
            kind=kind,
            name=name,
            columns=columns,
            primary_key=key,
            if_not_exists=exists,
            **self._table_clauses(),
        )

    def _table_clauses(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        given: set[str] = set()
        while self._curr:
            token = self._curr
            clause, name, value = self._table_clause()
            if clause in given:
                self.fail(f"{clause} is given twice", token)
            given.add(clause)
            found[name] = value
        return found

    def _table_clause(self) -> tuple[str, str, Any]:
        """The clause, the field of CreateTable that it fills and its value."""
        if self._match_text_seq("LOCATION", "REFERENCE"):
            return "LOCATION", "location_reference", self.string("a quoted name after LOCATION REFERENCE")
        if self._match_text_seq("LOCATION"):
            return "LOCATION", "location", self.string("a quoted path or REFERENCE after LOCATION")
        if self._match_text_seq("FLUSH", "POLICY"):
            return "FLUSH POLICY", "flush_policy", self.flush_policy()
        if not self._match(TokenType.WITH):
            self.expected("LOCATION, FLUSH POLICY or WITH")
        return "WITH", "options", self.options()

    def _alter(self) -> Statement:
        if self._match(TokenType.NAMESPACE):
            name = self.name("a namespace name")
            self.expect("SET", "OPTIONS")
            return AlterNamespace(text=self.source, name=name, options=self.options())
        self._kind()
        if not self._match(TokenType.TABLE):
            self._refuse("ALTER", "NAMESPACE or TABLE")
        table = self.table_name()
        return AlterTable(text=self.source, name=table, actions=tuple(self.each(self.alter_action)))

    def _drop(self) -> Statement:
        if self._match(TokenType.NAMESPACE):
            exists = self._match_text_seq("IF", "EXISTS")
            return DropNamespace(text=self.source, name=self.name("a namespace name"), if_exists=exists)
        kind = self._kind()
        if not self._match(TokenType.TABLE):
            self._refuse("DROP", "NAMESPACE or [USER | SHARED | STREAM] TABLE")
        exists = self._match_text_seq("IF", "EXISTS")
        return DropTable(text=self.source, kind=kind, name=self.table_name(), if_exists=exists)

    def _show(self) -> Statement:
        if self._match_text_seq("NAMESPACES"):
            return ShowNamespaces(text=self.source, page=self._page())
        if self._match_text_seq("TABLES"):
            namespace = self.name("a namespace name") if self._match(TokenType.IN) else None
            return ShowTables(text=self.source, namespace=namespace, page=self._page())
        if self._match_text_seq("TABLE", "STATS") or self._match_text_seq("STATS", "FOR", "TABLE"):
            return ShowTableStats(text=self.source, name=self.table_name())
        if not self._match_text_seq("MANIFEST", "CACHE"):
            self._refuse("SHOW", "NAMESPACES, TABLES, TABLE STATS or MANIFEST CACHE")
        return ShowManifestCache(text=self.source)

    def _page(self) -> Page:
        if not self._match(TokenType.LIMIT):
            return Page()
        limit = self.integer("a number after LIMIT")
        offset = self.integer("a number after OFFSET") if self._match(TokenType.OFFSET) else 0
        return Page(limit=limit, offset=offset)

    def _describe(self) -> DescribeTable:
        self._match(TokenType.TABLE)
        return DescribeTable(text=self.source, name=self.table_name())

    def _flush(self) -> FlushTable:
        self.expect("TABLE")
        return FlushTable(text=self.source, name=self.table_name())

    def _explain(self) -> Explain:
        if self.word() and self._curr.token_type not in QUERY_STARTS:
            self.fail(f"EXPLAIN {self.word()} is not supported; expected SELECT")
        return Explain(text=self.source, query=self._whole_query())

    def _whole_query(self) -> exp.Query:
        query = self.query()
        self.trees.append(query)
        return query

    def _insert(self) -> Insert:
        if not self._match(TokenType.INTO):
            self._refuse("INSERT", "INTO")
        name = self.table_name()
        self._user_may_stand_here()
        columns = self._insert_columns()
        self._user_may_stand_here()
        if self._match(TokenType.VALUES):
            source: exp.Expression = exp.Values(expressions=self.each(self._row))
        else:
            source = self._insert_query()
        self._end_change("INSERT")
        return Insert(text=self.source, name=name, columns=columns, source=source, as_user=self.as_user)

    def _insert_columns(self) -> tuple[str, ...]:
        next_kind = self._next.token_type
        if not self._match(TokenType.L_PAREN, advance=False) or next_kind in QUERY_STARTS | {TokenType.L_PAREN}:
            return ()
        self._advance()
        names: dict[str, str] = {}

        def column() -> None:
            token = self._curr
            name = self.name("a column name")
            if names.setdefault(name.casefold(), name) is not name:
                self.fail(f"column '{name}' is named twice", token)

        self.each(column)
        self.expect(")")
        return tuple(names.values())

    def _insert_query(self) -> exp.Expression:
        starts = QUERY_STARTS | {TokenType.L_PAREN}
        if self._curr.token_type not in starts:
            if self.word() in ("DEFAULT", "BY", "OVERWRITE", "AS", "PARTITION"):
                self.fail(f"{self.word()} is not supported in INSERT; expected columns, VALUES or SELECT")
            self.expected("columns, VALUES or SELECT")
        return self.concrete(self.query())

    def _row(self) -> exp.Tuple:
        self.expect("(")
        values = self.each(self._value_or_default)
        self.expect(")")
        return exp.Tuple(expressions=values)

    def _value_or_default(self) -> exp.Expression:
        if self._match(TokenType.DEFAULT):
            return exp.Var(this="DEFAULT")
        return self.value()

    def _update(self) -> Update:
        name = self.table_name()
        alias = self._alias()
        self.expect("SET")
        assigned: dict[str, tuple[str, exp.Expression]] = {}
        self.each(lambda: self._assignment(assigned))
        where = self._where()
        self._end_change("UPDATE")
        assignments = tuple(assigned.values())
        return Update(
            text=self.source, name=name, alias=alias, assignments=assignments, where=where, as_user=self.as_user
        )

    def _assignment(self, assigned: dict[str, tuple[str, exp.Expression]]) -> None:
        token = self._curr
        name = self.name("a column name")
        if not self._match(TokenType.EQ):
            self.expected(f"'=' after column '{name}'")
        if name.casefold() in assigned:
            self.fail(f"column '{name}' is assigned twice", token)
        assigned[name.casefold()] = (name, self._value_or_default())

    def _delete(self) -> Delete:
        if not self._match(TokenType.FROM):
            self.expected("FROM after DELETE")
        name = self.table_name()
        alias = self._alias()
        where = self._where()
        self._end_change("DELETE")
        return Delete(text=self.source, name=name, alias=alias, where=where, as_user=self.as_user)

    def _alias(self) -> str | None:
        self._user_may_stand_here()
        alias = None
        if self._match(TokenType.ALIAS) or self._curr.token_type in ALIASES:
            alias = self.name("an alias")
            self._user_may_stand_here()
        return alias

    def _where(self) -> exp.Expression | None:
        return self.concrete(self._parse_disjunction()) if self._match(TokenType.WHERE) else None

    def _end_change(self, verb: str) -> None:
        if self._curr.token_type in CLAUSES:
            word = "ON CONFLICT" if self._match_text_seq("ON", "CONFLICT", advance=False) else self.word()
            self.fail(f"{word} is not supported in {verb}")
        self.finish()
        self._user_may_stand_here()
        if self._user_place:
            self.fail("AS USER stands after the table name or at the end", self._user_place[1])


ALIASES = (StatementParser.TABLE_ALIAS_TOKENS | {TokenType.IDENTIFIER}) - {
    TokenType.SET,
    TokenType.LIMIT,
    TokenType.OFFSET,
}

STATEMENTS: dict[str, Callable[[StatementParser], Statement]] = {
    "CREATE": StatementParser._create,
    "ALTER": StatementParser._alter,
    "DROP": StatementParser._drop,
    "SHOW": StatementParser._show,
    "DESCRIBE": StatementParser._describe,
    "DESC": StatementParser._describe,
    "FLUSH": StatementParser._flush,
    "EXPLAIN": StatementParser._explain,
    "INSERT": StatementParser._insert,
    "UPDATE": StatementParser._update,
    "DELETE": StatementParser._delete,
}


def _user_clauses(tokens: list[Token]) -> list[int]:
    """Where AS USER '…' starts outside of brackets."""
    places: list[int] = []
    depth = 0
    for index, token in enumerate(tokens):
        kind = token.token_type
        if kind == TokenType.L_PAREN:
            depth += 1
        elif kind == TokenType.R_PAREN:
            depth -= 1
        elif kind == TokenType.ALIAS and not depth and _is_user_clause(tokens[index : index + 3]):
            places.append(index)
    return places


def _is_user_clause(tokens: list[Token]) -> bool:
    return (
        len(tokens) == 3
        and tokens[1].token_type == TokenType.VAR
        and tokens[1].text.upper() == "USER"
        and tokens[2].token_type == TokenType.STRING
    )
