"""DuckDB's dialect for Lakefork: fewer clauses, a position in every error, limited nesting."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import ClassVar, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.generators import duckdb as generator
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.sql.parse.statements import TableName
from lakefork.sql.parse.tokens import MAX_DEPTH, MAX_SELECTS, PositionedError, Tokenizer, show, too_many

Item = TypeVar("Item")

MAX_REREAD = 100_000
MAX_TERMS = 1_000
MAX_TABLES = 200
MAX_INTERVAL = 100  # characters

# sqlglot warns in the log of the process, with users' texts as they are.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
# Looks for the offset in a time of day; sqlglot's takes the time of the square of a text's length.
generator.TIMEZONE_PATTERN = re.compile(r"\A.{0,60}?:\d{2}.{0,60}?[+-]\d{2}", re.DOTALL)

QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES})
SIMPLE_VALUES: dict[TokenType, Callable[[str], exp.Expression]] = {
    TokenType.STRING: lambda text: exp.Literal(this=text, is_string=True),
    TokenType.NUMBER: lambda text: exp.Literal(this=text, is_string=False),
    TokenType.NULL: lambda _: exp.Null(),
    TokenType.TRUE: lambda _: exp.Boolean(this=True),
    TokenType.FALSE: lambda _: exp.Boolean(this=False),
    TokenType.PLACEHOLDER: lambda text: exp.Placeholder(this=text),
}
NEVER_NAMES = frozenset({TokenType.NULL, TokenType.TRUE, TokenType.FALSE, TokenType.IN, TokenType.DEFAULT})
# sqlglot handles long chains of these in a loop.
CHAINS = (exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.DPipe, exp.SetOperation)
# Clauses after a table's name that sqlglot parses but Lakefork would ignore.
IGNORED_CLAUSES = ("only", "indexed", "hints", "version", "changes", "partition", "rows_from")


class QueryParser(DuckDBParser):
    """Parses queries and the parts that all statements share."""

    VERSION_PHRASES: ClassVar[dict[tuple[str, ...], str]] = {}
    PLACEHOLDER_PARSERS: ClassVar[dict[TokenType, Callable[..., exp.Expr | None]]] = {
        **{kind: method for kind, method in DuckDBParser.PLACEHOLDER_PARSERS.items() if kind != TokenType.COLON},
        TokenType.PLACEHOLDER: lambda self: self.expression(exp.Placeholder(this=self._prev.text)),
    }

    trees: list[exp.Expr]
    _patience = MAX_REREAD

    def load(self, tokens: list[Token], text: str) -> None:
        self.reset()
        self.trees = []
        self.sql = text
        self._chunks = [tokens]
        self._advance_chunk()

    def _retreat(self, index: int) -> None:
        # sqlglot tries int(…) as a type and then as a function: twice the work for every level of nesting.
        back = self._index - index
        if back:
            self._patience -= back
            if self._patience < 0:
                raise RecursionError
            self._advance(-back)

    def fail(self, message: str, token: Token | None = None) -> NoReturn:
        place = token or self._curr
        offset = place.start if place else self._prev.end + 1
        raise PositionedError(message, offset)

    def expected(self, what: str, token: Token | None = None) -> NoReturn:
        self.fail(f"expected {what}, found {show(token or self._curr, self.sql)}", token)

    def reject(self, verb: str, what: str) -> NoReturn:
        word = self.word()
        if not word:
            self.expected(what)
        if word == "OR":
            word = f"OR {self._next.text.upper()}".strip()
        self.fail(f"{verb} {word} is not supported; expected {what}")

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:
        found = show(token or self._curr, self.sql)
        first, _, rest = message.partition(" ")
        if first in ("Expecting", "Expected"):
            what = rest.partition(" but got ")[0]
            self.expected(what if what[:1].isalpha() else f"'{what}'", token)
        if first == "Required":
            self.fail(f"something is missing before {found}", token)
        self.fail(f"unexpected {found}", token)

    def finish(self) -> None:
        if self._curr:
            self.fail(f"unexpected {show(self._curr, self.sql)}")

    def check_depth(self) -> None:
        """Limits the depth of trees that were parsed without recursion, such as 1-1+1-1…, because later code
        recurses.
        """
        if self._tokens_size <= MAX_DEPTH:
            return
        stack = [(tree, 1, 1) for tree in self.trees]
        counts = Counter[type]()
        while stack:
            node, depth, terms = stack.pop()
            counts[type(node)] += 1
            if depth > 2 * MAX_DEPTH:
                self.fail("the statement is nested too deeply", self._tokens[0])
            if terms > MAX_TERMS:  # DuckDB 1.5 crashes at 10,000
                self.fail(f"more than {MAX_TERMS} terms in a row; use IN (…) or a join", self._tokens[0])
            chained = type(node) if isinstance(node, CHAINS) else None
            counted = chained is not None and not isinstance(node, exp.SetOperation)
            for child in node.iter_expressions():
                same = type(child) is chained
                stack.append((child, depth if same else depth + 1, terms + 1 if same and counted else 1))
        for kind, most, what in ((exp.Select, MAX_SELECTS, "queries"), (exp.Table, MAX_TABLES, "tables in FROM")):
            if counts[kind] > most:
                raise too_many(most, what, self._tokens[0])

    def word(self) -> str:
        """Returns the current token as a keyword; empty if it is not one."""
        token = self._curr
        is_word = token and token.token_type not in self.TEXT_MATCH_EXCLUDED_TOKENS and token.text[:1].isalpha()
        return " ".join(token.text.split()).upper() if is_word else ""

    def expect(self, *words: str) -> None:
        for word in words:
            if not self._match_text_seq(word):
                self.expected(word if word.isalpha() else f"'{word}'")

    def each(self, method: Callable[[], Item]) -> list[Item]:
        """Parses comma-separated items, at least one."""
        items = [method()]
        while self._match(TokenType.COMMA):
            items.append(method())
        return items

    def name(self, what: str) -> str:
        token = self._curr
        quoted = token.token_type == TokenType.IDENTIFIER
        if not quoted and (token.token_type not in self.ID_VAR_TOKENS or token.token_type in NEVER_NAMES):
            self.expected(what)
        if not token.text:
            self.fail(f"{what} must not be empty")
        self._advance()
        return token.text

    def table_name(self) -> TableName:
        first = self.name("a table name")
        if not self._match(TokenType.DOT):
            return TableName(None, first)
        second = self.name("a table name")
        if self._match(TokenType.DOT, advance=False):
            self.fail("a table name has at most two parts; the session chooses the catalog")
        return TableName(first, second)

    def string(self, what: str) -> str:
        if not self._match(TokenType.STRING):
            self.expected(what)
        return self._prev.text

    def integer(self, what: str) -> int:
        token = self._curr
        if token.token_type != TokenType.NUMBER or not token.text.isdecimal() or len(token.text) > 18:
            self.expected(f"{what}, a whole number of at most 18 digits")
        self._advance()
        return int(token.text)

    def value(self) -> exp.Expression:
        """Parses an expression without alias, with a fast path for common cases."""
        token = self._curr
        if self._next.token_type in (TokenType.COMMA, TokenType.R_PAREN):
            simple = SIMPLE_VALUES.get(token.token_type)
            if simple:
                self._advance()
                return simple(token.text)
        return self.concrete(self._parse_disjunction())

    def concrete(self, node: exp.Expr | None) -> exp.Expression:
        if not isinstance(node, exp.Expression):
            self.expected("an expression")
        self.trees.append(node)
        return node

    def query(self) -> exp.Query:
        self._check_query_start()
        found = self._parse_ddl_select()
        if isinstance(found, exp.Values):
            found = self._values_to_select(found)
        if not isinstance(found, exp.Query):
            self.expected("a query")
        return found

    def _check_query_start(self) -> None:
        index = self._index
        while self._match(TokenType.L_PAREN):
            pass
        if self._curr.token_type not in QUERY_STARTS:
            self.expected("SELECT, WITH or VALUES")
        self._retreat(index)

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        # sqlglot would parse ARRAY[…] first as a type and then again as an array.
        if self._match_pair(TokenType.ARRAY, TokenType.L_BRACKET, advance=False):
            return None
        return super()._parse_types(check_func, schema, allow_identifiers, with_collation)

    def _parse_interval_span(self, this: exp.Expr, parse_function_unit: bool = True) -> exp.Interval:
        # sqlglot searches the text for numbers and units, which takes the time of the square of its length.
        if this and this.is_string and len(this.name) > MAX_INTERVAL:
            self.fail(f"an interval has at most {MAX_INTERVAL} characters", self._prev)
        return super()._parse_interval_span(this, parse_function_unit)

    def _parse_statement(self) -> exp.Expr | None:
        # sqlglot parses a statement inside and after WITH; only a query is allowed there.
        return self.query()

    def _parse_select_query(
        self,
        nested: bool = False,
        table: bool = False,
        parse_subquery_alias: bool = True,
        parse_set_operation: bool = True,
    ) -> exp.Expr | None:
        if self._curr.token_type in (TokenType.SUMMARIZE, TokenType.DESCRIBE):
            self.fail(f"{self.word()} is not supported in a query")
        return super()._parse_select_query(nested, table, parse_subquery_alias, parse_set_operation)

    def _parse_projections(self) -> tuple[list[exp.Expr], list[exp.Expr] | None]:
        projections, exclude = super()._parse_projections()
        if not projections:
            self.expected("a column or an expression after SELECT")
        return projections, exclude

    def _parse_into(self) -> exp.Into | None:
        if self._match(TokenType.INTO, advance=False):
            self.fail("SELECT INTO is not supported; write INSERT INTO … SELECT")
        return None

    def _parse_locks(self) -> list[exp.Lock]:
        token = self._curr
        if super()._parse_locks():
            self.fail(f"{token.text.upper()} {self._prev.text.upper()} is not supported in a query", token)
        return []

    def _parse_simplified_pivot(self, is_unpivot: bool | None = None) -> exp.Pivot:  # noqa: ARG002
        self.fail(f"{self._prev.text.upper()} is not supported as a statement", self._prev)

    def _parse_stream(self) -> exp.Stream | None:
        return None

    def _parse_changes(self) -> exp.Changes | None:
        return None

    def _parse_table_part(self, schema: bool = False) -> exp.Expr | None:
        if self._curr.token_type in (TokenType.STRING, TokenType.PLACEHOLDER, TokenType.PARAMETER):
            self.expected("a table name")
        return super()._parse_table_part(schema=schema)

    def _parse_table_parts(
        self,
        schema: bool = False,
        is_db_reference: bool = False,
        wildcard: bool = False,
        fast: bool = False,
    ) -> exp.Table | exp.Dot | None:
        token = self._curr
        table = super()._parse_table_parts(schema, is_db_reference, wildcard, fast)
        if isinstance(table, exp.Table) and table.args.get("catalog"):
            self.fail("a table name has at most two parts; the session chooses the catalog", token)
        return table

    def _parse_table(
        self,
        schema: bool = False,
        joins: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
        parse_bracket: bool = False,
        is_db_reference: bool = False,
        parse_partition: bool = False,
        consume_pipe: bool = False,
    ) -> exp.Expr | None:
        token = self._curr
        table = super()._parse_table(
            schema, joins, alias_tokens, parse_bracket, is_db_reference, parse_partition, consume_pipe
        )
        if isinstance(table, exp.AtIndex) or any(table and table.args.get(key) for key in IGNORED_CLAUSES):
            self.fail(f"the clauses of table {show(token, self.sql)} are not supported", token)
        return table

    def _parse_historical_data(self) -> exp.HistoricalData | None:
        if not (self._next.token_type == TokenType.L_PAREN and self._match_text_seq("AT")):
            return None
        self.expect("(")
        kind = self.word()
        if kind not in ("VERSION", "TIMESTAMP"):
            self.expected("VERSION => … or TIMESTAMP => … after AT (")
        self._advance()
        if not self._match(TokenType.FARROW):
            self.expected("'=>'")
        moment = self.concrete(self._parse_bitwise())
        self._match_r_paren()
        return self.expression(exp.HistoricalData(this="AT", kind=kind, expression=moment))


class Lakefork(DuckDB):
    """Lakefork's dialect. Unknown types are errors (SUPPORTS_USER_DEFINED_TYPES is off)."""

    SUPPORTS_USER_DEFINED_TYPES = False
    SUPPORTS_VALUES_DEFAULT = False
    Tokenizer = Tokenizer
    Parser = QueryParser

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """Keeps a JSON path as written, because DuckDB interprets it."""
        return path


DIALECT = Lakefork()
