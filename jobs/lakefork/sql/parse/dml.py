"""The grammar of INSERT, UPDATE and DELETE, each with AS USER."""

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.model.tables import fold
from lakefork.sql.parse.dialect import QUERY_STARTS, QueryParser
from lakefork.sql.parse.statements import Delete, Insert, Update
from lakefork.sql.parse.tokens import CLOSING, OPENING, PositionedError

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

ALIASES = (QueryParser.TABLE_ALIAS_TOKENS | {TokenType.IDENTIFIER}) - {
    TokenType.SET,
    TokenType.LIMIT,
    TokenType.OFFSET,
}


class ChangeParser(QueryParser):
    """Parses changes. AS USER is removed from the tokens first, because it could be parsed as an alias."""

    source = ""
    as_user: str | None = None
    _user_place: tuple[int, Token] | None = None

    def without_user(self, tokens: list[Token]) -> list[Token]:
        places = _user_clauses(tokens)
        self.as_user = self._user_place = None
        if not places:
            return tokens
        first = places[0]
        if tokens[0].token_type not in CHANGES_ROWS:
            raise PositionedError("AS USER belongs to INSERT, UPDATE and DELETE", tokens[first].start)
        if len(places) > 1:
            raise PositionedError("AS USER is given twice", tokens[places[1]].start)
        self.as_user = tokens[first + 2].text
        if not self.as_user:
            raise PositionedError("AS USER needs a user, found ''", tokens[first + 2].start)
        self._user_place = (first, tokens[first])
        return tokens[:first] + tokens[first + 3 :]

    def _user_may_stand_here(self) -> None:
        if self._user_place and self._user_place[0] == self._index:
            self._user_place = None

    def insert(self) -> Insert:
        if not self._match(TokenType.INTO):
            self.reject("INSERT", "INTO")
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
            if fold(name) in names:
                self.fail(f"column '{name}' is named twice", token)
            names[fold(name)] = name

        self.each(column)
        self.expect(")")
        return tuple(names.values())

    def _insert_query(self) -> exp.Expression:
        starts = QUERY_STARTS | {TokenType.L_PAREN}
        if self._match_text_seq("AS", "USER"):
            self.expected("a quoted user after AS USER")
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

    def update(self) -> Update:
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
        if fold(name) in assigned:
            self.fail(f"column '{name}' is assigned twice", token)
        assigned[fold(name)] = (name, self._value_or_default())

    def delete(self) -> Delete:
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
            self.fail("AS USER must follow the table name or end the statement", self._user_place[1])


def _user_clauses(tokens: list[Token]) -> list[int]:
    """Returns the positions of AS USER '…' outside parentheses."""
    places: list[int] = []
    depth = 0
    for index, token in enumerate(tokens):
        kind = token.token_type
        if kind in OPENING:
            depth += 1
        elif kind in CLOSING:
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
