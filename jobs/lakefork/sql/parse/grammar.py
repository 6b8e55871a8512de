"""The grammar of Lakefork's SQL: parses a text to a list of frozen statements."""

from collections.abc import Callable
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.model.tables import TableKind
from lakefork.sql.parse.ddl import DefinitionParser
from lakefork.sql.parse.dialect import DIALECT, QUERY_STARTS
from lakefork.sql.parse.dml import ChangeParser
from lakefork.sql.parse.rules import Rule, parse_rule
from lakefork.sql.parse.statements import (
    AlterNamespace,
    AlterTable,
    BackupDatabase,
    CreateNamespace,
    CreateTable,
    DescribeTable,
    DropNamespace,
    DropTable,
    Explain,
    FlushTable,
    KillLiveQuery,
    OptionValue,
    Page,
    RestoreDatabase,
    Select,
    ShowBackup,
    ShowManifestCache,
    ShowNamespaces,
    ShowTables,
    ShowTableStats,
    Statement,
    TableName,
)
from lakefork.sql.parse.tokens import MAX_TEXT, PositionedError, SqlSyntaxError, check_statement, split, syntax_errors

__all__ = [
    "MAX_TEXT",
    "Rule",
    "SqlSyntaxError",
    "is_default",
    "parse",
    "parse_rule",
    "parse_until_error",
    "table_name",
    "time_travel",
]

KNOWN = "SELECT, INSERT, UPDATE, DELETE, EXPLAIN, CREATE, ALTER, DROP, SHOW, DESCRIBE, FLUSH, BACKUP and RESTORE are"


def parse(text: str) -> list[Statement]:
    """Parses the statements of a text; SqlSyntaxError names the mistake and its position."""
    statements, error = parse_until_error(text)
    if error:
        raise error
    return statements


def parse_until_error(text: str) -> tuple[list[Statement], SqlSyntaxError | None]:
    """Returns the statements before the first that does not parse, and its error; raises if it cannot be split."""
    with syntax_errors(text):
        chunks = split(text)
        parser = StatementParser(dialect=DIALECT)
    found: list[Statement] = []
    for tokens in chunks:
        try:
            with syntax_errors(text):
                check_statement(tokens, text)
                found.append(parser.statement(tokens, text))
        except SqlSyntaxError as error:
            return found, error
    return found, None


def is_default(expression: exp.Expr) -> bool:
    """Tells whether a value of INSERT or UPDATE is the word DEFAULT."""
    return isinstance(expression, exp.Var) and expression.name == "DEFAULT"


def time_travel(table: exp.Table) -> tuple[str, exp.Expression] | None:
    """ "version" or "timestamp" and its expression, where the table is followed by AT (…)."""
    when = table.args.get("when")
    return (when.args["kind"].lower(), when.expression) if when else None


def table_name(node: exp.Table) -> TableName:
    """Returns the name as written, without quotes."""
    namespace, name = node.args.get("db"), node.this
    if node.args.get("catalog") or not isinstance(name, exp.Identifier) or not name.name:
        raise SqlSyntaxError("expected a table name of at most two parts")
    return TableName(namespace.name if namespace else None, name.name)


class StatementParser(DefinitionParser, ChangeParser):
    """Parses one statement."""

    def statement(self, tokens: list[Token], text: str) -> Statement:
        self.source = text[tokens[0].start : tokens[-1].end + 1]
        try:
            self.load(self.without_user(tokens), text)
            found = self._dispatch()
            self.finish()
            self.check_depth()
        except RecursionError:
            raise PositionedError("the statement is nested too deeply", tokens[0].start) from None
        return found

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
            self.reject("CREATE", "NAMESPACE or [USER | SHARED | STREAM] TABLE")
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
        """Parses a clause; returns it with the field of CreateTable that it sets, and its value."""
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
            self.reject("ALTER", "NAMESPACE or TABLE")
        table = self.table_name()
        return AlterTable(text=self.source, name=table, actions=tuple(self.each(self.alter_action)))

    def _drop(self) -> Statement:
        if self._match(TokenType.NAMESPACE):
            exists = self._match_text_seq("IF", "EXISTS")
            return DropNamespace(text=self.source, name=self.name("a namespace name"), if_exists=exists)
        kind = self._kind()
        if not self._match(TokenType.TABLE):
            self.reject("DROP", "NAMESPACE or [USER | SHARED | STREAM] TABLE")
        exists = self._match_text_seq("IF", "EXISTS")
        name = self.table_name()
        force = bool(self._match_text_seq("FORCE"))
        return DropTable(text=self.source, kind=kind, name=name, if_exists=exists, force=force)

    def _kill(self) -> KillLiveQuery:
        self.expect("LIVE", "QUERY")
        return KillLiveQuery(text=self.source, live_id=self.string("a quoted id of system.live_queries"))

    def _show(self) -> Statement:
        if self._match_text_seq("NAMESPACES"):
            return ShowNamespaces(text=self.source, page=self._page())
        if self._match_text_seq("TABLES"):
            namespace = self.name("a namespace name") if self._match(TokenType.IN) else None
            return ShowTables(text=self.source, namespace=namespace, page=self._page())
        if self._match_text_seq("TABLE", "STATS") or self._match_text_seq("STATS", "FOR", "TABLE"):
            return ShowTableStats(text=self.source, name=self.table_name())
        if self._match_text_seq("BACKUP"):
            return ShowBackup(text=self.source, path=self.string("a quoted path after SHOW BACKUP"))
        if not self._match_text_seq("MANIFEST", "CACHE"):
            self.reject("SHOW", "NAMESPACES, TABLES, TABLE STATS, MANIFEST CACHE or BACKUP")
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

    def _backup(self) -> BackupDatabase:
        namespace = self._database()
        self.expect("TO")
        path = self.string("a quoted path after TO")
        incremental = self._match_text_seq("MODE")
        if incremental:
            self.expect("INCREMENTAL")
        return BackupDatabase(text=self.source, namespace=namespace, to=path, incremental=bool(incremental))

    def _restore(self) -> RestoreDatabase:
        namespace = self._database()
        self.expect("FROM")
        path = self.string("a quoted path after FROM")
        replace = bool(self._match_text_seq("REPLACE"))
        by_reference = bool(self._match_text_seq("BY", "REFERENCE"))
        return RestoreDatabase(
            text=self.source, namespace=namespace, source=path, replace=replace, by_reference=by_reference
        )

    def _database(self) -> str | None:
        """The name of a namespace; * for all."""
        self.expect("DATABASE")
        return None if self._match(TokenType.STAR) else self.name("a namespace name, or *")

    def _explain(self) -> Explain:
        if self.word() and self._curr.token_type not in QUERY_STARTS:
            self.fail(f"EXPLAIN {self.word()} is not supported; expected SELECT")
        return Explain(text=self.source, query=self._whole_query())

    def _whole_query(self) -> exp.Query:
        query = self.query()
        self.trees.append(query)
        return query


STATEMENTS: dict[str, Callable[[StatementParser], Statement]] = {
    "CREATE": StatementParser._create,
    "ALTER": StatementParser._alter,
    "DROP": StatementParser._drop,
    "SHOW": StatementParser._show,
    "DESCRIBE": StatementParser._describe,
    "DESC": StatementParser._describe,
    "FLUSH": StatementParser._flush,
    "KILL": StatementParser._kill,
    "BACKUP": StatementParser._backup,
    "RESTORE": StatementParser._restore,
    "EXPLAIN": StatementParser._explain,
    "INSERT": StatementParser.insert,
    "UPDATE": StatementParser.update,
    "DELETE": StatementParser.delete,
}
