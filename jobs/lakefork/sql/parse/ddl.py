"""The grammar of table definitions: columns, types, options, flush policies, ALTER actions."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.model.tables import fold
from lakefork.sql.parse.dialect import QueryParser
from lakefork.sql.parse.statements import (
    AddColumn,
    AlterAction,
    ColumnDefinition,
    DropColumn,
    FlushPolicy,
    ModifyColumn,
    OptionValue,
    RenameColumn,
    SetFlushPolicy,
    SetOptions,
)
from lakefork.sql.parse.tokens import show

NO_TYPES = frozenset({exp.DType.UNKNOWN, exp.DType.USERDEFINED, exp.DType.NULL})


@dataclass
class Clauses:
    """The clauses after a column's type; None if absent."""

    nullable: bool | None = None
    default: exp.Expression | None = None
    key: Token | None = None


@dataclass
class Columns:
    """The column list of CREATE TABLE while it is parsed; tokens are kept for the position of errors."""

    columns: list[ColumnDefinition] = field(default_factory=list)
    tokens: dict[str, Token] = field(default_factory=dict)
    nulls: set[str] = field(default_factory=set)
    key: list[tuple[Token, str]] = field(default_factory=list)


class DefinitionParser(QueryParser):
    def column_list(self) -> tuple[tuple[ColumnDefinition, ...], tuple[str, ...]]:
        """Parses the columns of a new table and the names of its key columns."""
        token = self._curr
        if not self._match(TokenType.L_PAREN):
            self.fail(f"a table needs at least one column; expected '(', found {show(token, self.sql)}")
        found = Columns()
        if not self._match(TokenType.R_PAREN, advance=False):
            self.each(lambda: self._list_item(found))
        if not self._match(TokenType.R_PAREN):
            self.expected("NOT NULL, NULL, DEFAULT, PRIMARY KEY, ',' or ')'")
        if not found.columns:
            self.fail("a table needs at least one column", token)
        return self._with_key(found)

    def _list_item(self, found: Columns) -> None:
        token = self._curr
        if self._match_primary_key():
            self.expect("(")
            self._set_key(found, self.each(lambda: (self._curr, self.name("a column name"))), token)
            self.expect(")")
            return
        column, clauses = self.column()
        folded = fold(column.name)
        if folded in found.tokens:
            self.fail(f"column '{column.name}' is defined twice", token)
        found.tokens[folded] = token
        found.columns.append(column)
        if clauses.nullable:
            found.nulls.add(folded)
        if clauses.key:
            self._set_key(found, [(token, column.name)], clauses.key)

    def _match_primary_key(self) -> bool:
        return self._match(TokenType.PRIMARY_KEY) or self._match_text_seq("PRIMARY", "KEY")

    def _set_key(self, found: Columns, names: list[tuple[Token, str]], token: Token) -> None:
        if found.key:
            self.fail("PRIMARY KEY is given twice; for a composite key use PRIMARY KEY (a, b)", token)
        found.key = names

    def _with_key(self, found: Columns) -> tuple[tuple[ColumnDefinition, ...], tuple[str, ...]]:
        names = {fold(column.name): column.name for column in found.columns}
        key: list[str] = []
        for token, name in found.key:
            folded = fold(name)
            if folded not in names:
                self.fail(f"PRIMARY KEY names column '{name}', which the table does not have", token)
            if names[folded] in key:
                self.fail(f"PRIMARY KEY names column '{name}' twice", token)
            if folded in found.nulls:
                self.fail(f"column '{name}' is in the PRIMARY KEY and cannot be NULL", found.tokens[folded])
            key.append(names[folded])
        columns = (replace(column, nullable=False) if column.name in key else column for column in found.columns)
        return tuple(columns), tuple(key)

    def column(self) -> tuple[ColumnDefinition, Clauses]:
        name = self.name("a column name")
        kind = self.column_type()
        clauses = self._clauses()
        nullable = clauses.nullable is not False
        return ColumnDefinition(name=name, type=kind, nullable=nullable, default=clauses.default), clauses

    def column_type(self) -> exp.DataType:
        token = self._curr
        quoted = token.token_type == TokenType.IDENTIFIER
        kind = None if quoted else self._parse_types(schema=True)
        if not isinstance(kind, exp.DataType) or not isinstance(kind.this, exp.DType) or kind.this in NO_TYPES:
            if quoted or token.token_type in self.ID_VAR_TOKENS:
                self.fail(f"type {show(token, self.sql)} does not exist", token)
            self.expected("a type", token)
        self.trees.append(kind)
        return kind

    def _clauses(self) -> Clauses:
        found = Clauses()
        while True:
            token = self._curr
            if self._match_pair(TokenType.NOT, TokenType.NULL):
                self._set_nullable(found, False, token)
            elif self._match(TokenType.NULL):
                self._set_nullable(found, True, token)
            elif self._match(TokenType.DEFAULT):
                if found.default is not None:
                    self.fail("DEFAULT is given twice", token)
                # Not a full condition, because NOT NULL may follow.
                found.default = self.concrete(self._parse_bitwise())
            elif self._match_primary_key():
                if found.key:
                    self.fail("PRIMARY KEY is given twice", token)
                found.key = token
            else:
                return found

    def _set_nullable(self, found: Clauses, nullable: bool, token: Token) -> None:
        if found.nullable is not None:
            twice = (
                "NULL and NOT NULL are both given" if found.nullable != nullable else "NOT NULL or NULL is given twice"
            )
            self.fail(twice, token)
        found.nullable = nullable

    def options(self) -> dict[str, OptionValue]:
        """Parses ( k = v, … ); keys become lower case."""
        self.expect("(")
        found: dict[str, OptionValue] = {}

        def option() -> None:
            token = self._curr
            key = self.name("an option name").lower()
            if key in found:
                self.fail(f"option '{key}' is given twice", token)
            if not self._match(TokenType.EQ):
                self.expected("'='")
            found[key] = self._option_value()

        self.each(option)
        self.expect(")")
        return found

    def _option_value(self) -> OptionValue:
        token = self._curr
        if self._match(TokenType.STRING):
            return token.text
        if self._match_set((TokenType.TRUE, TokenType.FALSE)):
            return token.token_type == TokenType.TRUE
        if self._match(TokenType.DASH):
            return -self._number()
        if token.token_type == TokenType.NUMBER:
            return self._number()
        if not self.word() or token.token_type == TokenType.NULL:
            self.expected("a string, a number, TRUE, FALSE or a word")
        self._advance()
        return self.sql[token.start : token.end + 1]

    def _number(self) -> int | float:
        if self._curr.token_type != TokenType.NUMBER:
            self.expected("a number")
        text = self._curr.text
        if text.isdecimal():
            return self.integer("a number")
        number = float(text)
        if not math.isfinite(number):
            self.expected("a smaller number")
        self._advance()
        return number

    def flush_policy(self) -> FlushPolicy:
        """Parses the clauses of FLUSH POLICY."""
        found = FlushPolicy()
        while True:
            token = self._curr
            before = found
            if self._match(TokenType.ROWS):
                given: int | str | None = before.rows
                found = replace(before, rows=self.integer("a number of rows"))
            elif self._match(TokenType.INTERVAL):
                given = before.interval
                found = replace(before, interval=self.string("a quoted interval"))
            elif found == FlushPolicy():
                self.expected("ROWS n or INTERVAL 't' after FLUSH POLICY")
            else:
                return found
            if given is not None:
                self.fail(f"{token.text.upper()} is given twice in FLUSH POLICY", token)
            if self._next.token_type in (TokenType.ROWS, TokenType.INTERVAL):
                self._match(TokenType.COMMA)

    def alter_action(self) -> AlterAction:
        actions: dict[str, Callable[[], AlterAction]] = {
            "ADD": self._add_column,
            "DROP": self._drop_column,
            "MODIFY": self._modify_column,
            "RENAME": self._rename_column,
            "SET": self._set,
        }
        action = actions.get(self.word())
        if action is None:
            self.expected("ADD, DROP, MODIFY, RENAME or SET")
        self._advance()
        if action != self._set:
            self._match(TokenType.COLUMN)
        return action()

    def _add_column(self) -> AddColumn:
        column, clauses = self.column()
        if clauses.key:
            self.fail("a column of the PRIMARY KEY cannot be added later", clauses.key)
        return AddColumn(column=column)

    def _drop_column(self) -> DropColumn:
        return DropColumn(name=self.name("a column name"), force=bool(self._match_text_seq("FORCE")))

    def _modify_column(self) -> ModifyColumn:
        name = self.name("a column name")
        kind = self.column_type()
        clauses = self._clauses()
        if clauses.key:
            self.fail("the PRIMARY KEY of a table cannot be changed", clauses.key)
        return ModifyColumn(name=name, type=kind, nullable=clauses.nullable, default=clauses.default)

    def _rename_column(self) -> RenameColumn:
        name = self.name("a column name")
        self.expect("TO")
        return RenameColumn(name=name, new_name=self.name("a column name"))

    def _set(self) -> SetOptions | SetFlushPolicy:
        if self._match_text_seq("FLUSH", "POLICY"):
            return SetFlushPolicy(flush_policy=self.flush_policy())
        self._match_text_seq("OPTIONS")
        if not self._match(TokenType.L_PAREN, advance=False):
            self.expected("OPTIONS (…) or FLUSH POLICY after SET")
        return SetOptions(options=self.options())
