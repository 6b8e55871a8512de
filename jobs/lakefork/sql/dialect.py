"""DuckDB's dialect as Lakefork reads it: fewer clauses, positions in every error, limits before any recursion."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, NoReturn, TypeVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.errors import InvalidInputError
from lakefork.sql.statements import TableName

Item = TypeVar("Item")

MAX_TEXT = 1_048_576
MAX_TOKENS = 200_000
MAX_DEPTH = 100
MAX_REREAD = 100_000
SHOWN = 40

OPENING = {TokenType.L_PAREN: ")", TokenType.L_BRACKET: "]", TokenType.L_BRACE: "}"}
CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.VALUES})
SIMPLE_VALUES: dict[TokenType, Callable[[str], exp.Expression]] = {
    TokenType.STRING: lambda text: exp.Literal(this=text, is_string=True),
    TokenType.NUMBER: lambda text: exp.Literal(this=text, is_string=False),
    TokenType.NULL: lambda _: exp.Null(),
    TokenType.TRUE: lambda _: exp.Boolean(this=True),
    TokenType.FALSE: lambda _: exp.Boolean(this=False),
    TokenType.PLACEHOLDER: lambda _: exp.Placeholder(),
}
NEVER_NAMES = frozenset({TokenType.NULL, TokenType.TRUE, TokenType.FALSE, TokenType.IN, TokenType.DEFAULT})
# sqlglot walks and writes a chain of one of these in a loop, however long.
CHAINS = (exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.DPipe, exp.SetOperation)
# What sqlglot reads after a table's name and an engine that looks only at the name would forget.
FORGOTTEN = ("only", "indexed", "hints", "version", "changes", "partition", "rows_from")


class SqlSyntaxError(InvalidInputError):
    """The text is no SQL that Lakefork understands; line and column are None where no place is to blame."""

    code = "syntax_error"

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(f"{message} (line {line}, column {column})" if line else message)
        self.line = line
        self.column = column


class PlacedError(ParseError):
    """A mistake at an offset of the text; sqlglot catches it where it tries one reading before another."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


@contextmanager
def syntax_errors(text: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes one sentence."""
    try:
        yield
    except PlacedError as failure:
        raise _placed(failure.message, text, failure.offset) from None
    except Exception as error:
        # sqlglot promises no closed list of exceptions, and the reader wrote the text, not our code.
        raise SqlSyntaxError(f"the text cannot be read as SQL: {type(error).__name__}") from error


def _placed(message: str, text: str, offset: int) -> SqlSyntaxError:
    line = text.count("\n", 0, offset) + 1
    return SqlSyntaxError(message, line, offset - text.rfind("\n", 0, offset))


def show(token: Token, text: str) -> str:
    """A token as the reader wrote it, short and printable."""
    if not token:
        return "the end of the statement"
    written = text[token.start : token.end + 1]
    short = written if len(written) <= SHOWN else written[: SHOWN - 1] + "…"
    printable = "".join(char if char.isprintable() else "�" for char in " ".join(short.split()) or short)
    return printable if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) else f"'{printable}'"


class Tokenizer(DuckDB.Tokenizer):
    """No commands, whose rest would be one string; no dollar quotes, which take $1,$2 for an open one."""

    COMMANDS: ClassVar[set[TokenType]] = set()
    HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
    # ?:: would hide the parameter of ?::INT.
    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        **{word: kind for word, kind in DuckDB.Tokenizer.KEYWORDS.items() if word not in ("?::", "??", "|>")},
        "BYTES": TokenType.VARBINARY,
    }


def read(text: str) -> list[list[Token]]:
    """The tokens of every statement that is not empty; brackets, commas and parameters are in order."""
    if len(text) > MAX_TEXT:
        raise PlacedError(f"the text has {len(text)} characters, the limit is {MAX_TEXT}", 0)
    _check_characters(text)
    tokens = _tokenize(text)
    if len(tokens) > MAX_TOKENS:
        raise PlacedError(f"the text has {len(tokens)} words and signs, the limit is {MAX_TOKENS}; send it in parts", 0)
    _check_parameters(tokens, text)
    chunks: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    statements = [chunk for chunk in chunks if chunk]
    for chunk in statements:
        _check_brackets(chunk, text)
        _check_commas(chunk, text)
    return statements


def _check_characters(text: str) -> None:
    if (place := text.find("\0")) >= 0:
        raise PlacedError("the text has a NUL character", place)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PlacedError("the text has half of a surrogate pair", error.start) from None


def _tokenize(text: str) -> list[Token]:
    tokenizer = Tokenizer(dialect=DIALECT)
    try:
        return tokenizer.tokenize(text)
    except TokenError:
        start = tokenizer._core._start
        for opening, what in (("'", "string"), ('"', "quoted name"), ("/*", "comment"), ("{#", "comment")):
            if text.startswith(opening, start):
                raise PlacedError(f"the {what} that starts here is never closed", start) from None
        raise PlacedError(f"cannot read {show(Token.var(text[start : start + 1]), text[start:])}", start) from None


def _check_brackets(tokens: Sequence[Token], text: str) -> None:
    stack: list[Token] = []
    for token in tokens:
        kind = token.token_type
        if kind in OPENING:
            stack.append(token)
            if len(stack) > MAX_DEPTH:
                raise PlacedError(f"the statement is nested too deeply, the limit is {MAX_DEPTH} brackets", token.start)
        elif kind in CLOSING and (not stack or OPENING[stack.pop().token_type] != token.text):
            raise PlacedError(f"{show(token, text)} closes no bracket", token.start)
    if stack:
        raise PlacedError(f"{show(stack[-1], text)} is never closed", stack[-1].start)


def _check_commas(tokens: Sequence[Token], text: str) -> None:
    # sqlglot drops an empty item of a list without a word: VALUES (1,,2) would have two values.
    previous: TokenType = TokenType.COMMA
    for token in tokens:
        kind = token.token_type
        if (kind == TokenType.COMMA and (previous == TokenType.COMMA or previous in OPENING)) or (
            previous == TokenType.COMMA and kind in CLOSING
        ):
            raise PlacedError(f"expected an item of the list, found {show(token, text)}", token.start)
        previous = kind
    if previous == TokenType.COMMA:
        raise PlacedError("expected an item of the list, found the end of the statement", tokens[-1].end + 1)


def _check_parameters(tokens: Sequence[Token], text: str) -> None:
    styles: set[TokenType] = set()
    for index, token in enumerate(tokens):
        if token.token_type not in (TokenType.PLACEHOLDER, TokenType.PARAMETER):
            continue
        if token.token_type == TokenType.PARAMETER and not _numbered(tokens, index):
            raise PlacedError(f"parameters are written ? or $1, found {_after(tokens, index, text)}", token.start)
        styles.add(token.token_type)
        if len(styles) > 1:
            raise PlacedError("parameters are written either ? or $1, not both", token.start)


def _numbered(tokens: Sequence[Token], index: int) -> bool:
    number = tokens[index + 1] if index + 1 < len(tokens) else None
    return (
        tokens[index].text == "$"
        and number is not None
        and number.start == tokens[index].end + 1
        and number.text.isdecimal()
        and len(number.text) <= 5
        and int(number.text) > 0
    )


def _after(tokens: Sequence[Token], index: int, text: str) -> str:
    end = tokens[min(index + 1, len(tokens) - 1)].end
    return show(Token(TokenType.VAR, "", start=tokens[index].start, end=end), text)


class QueryParser(DuckDBParser):
    """Reads queries and the small parts that all statements share."""

    VERSION_PHRASES: ClassVar[dict[tuple[str, ...], str]] = {}
    PLACEHOLDER_PARSERS: ClassVar[dict[TokenType, Callable[..., exp.Expr | None]]] = {
        kind: method for kind, method in DuckDBParser.PLACEHOLDER_PARSERS.items() if kind != TokenType.COLON
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
        raise PlacedError(message, offset)

    def expected(self, what: str, token: Token | None = None) -> NoReturn:
        self.fail(f"expected {what}, found {show(token or self._curr, self.sql)}", token)

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:
        found = show(token or self._curr, self.sql)
        first, _, rest = message.partition(" ")
        if first in ("Expecting", "Expected"):
            self.expected(rest.partition(" but got ")[0], token)
        if first == "Required":
            self.fail(f"something is missing before {found}", token)
        self.fail(f"unexpected {found}", token)

    def finish(self) -> None:
        if self._curr:
            self.fail(f"unexpected {show(self._curr, self.sql)}")

    def check_depth(self) -> None:
        """A tree that was read without recursion, as 1-1+1-1…, would still break every recursion over it."""
        if self._tokens_size <= MAX_DEPTH:
            return
        stack = [(tree, 1) for tree in self.trees]
        while stack:
            node, depth = stack.pop()
            if depth > 2 * MAX_DEPTH:
                self.fail("the statement is nested too deeply", self._tokens[0])
            chained = type(node) if isinstance(node, CHAINS) else None
            stack.extend((child, depth if type(child) is chained else depth + 1) for child in node.iter_expressions())

    def word(self) -> str:
        """The current token as a keyword; empty where it is none."""
        token = self._curr
        is_word = token and token.token_type not in self.TEXT_MATCH_EXCLUDED_TOKENS and token.text[:1].isalpha()
        return " ".join(token.text.split()).upper() if is_word else ""

    def expect(self, *words: str) -> None:
        for word in words:
            if not self._match_text_seq(word):
                self.expected(word if word.isalpha() else f"'{word}'")

    def each(self, method: Callable[[], Item]) -> list[Item]:
        """Items between commas, at least one."""
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
            self.fail("a table name has at most two parts, catalogs are chosen by the session")
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
        """An expression without alias; the frequent cases take the short way."""
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
        # sqlglot would read ARRAY[…] as a type first and then again as the array that it is.
        if self._match_pair(TokenType.ARRAY, TokenType.L_BRACKET, advance=False):
            return None
        return super()._parse_types(check_func, schema, allow_identifiers, with_collation)

    def _parse_statement(self) -> exp.Expr | None:
        # sqlglot asks for a statement inside WITH and after it; there only a query makes sense.
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
            self.fail("a table name has at most two parts, catalogs are chosen by the session", token)
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
        if isinstance(table, exp.AtIndex) or any(table and table.args.get(key) for key in FORGOTTEN):
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
            self.expected("=>")
        moment = self.concrete(self._parse_bitwise())
        self._match_r_paren()
        return self.expression(exp.HistoricalData(this="AT", kind=kind, expression=moment))


class Lakefork(DuckDB):
    """SUPPORTS_USER_DEFINED_TYPES off: an unknown type is an error, not a name to keep."""

    SUPPORTS_USER_DEFINED_TYPES = False
    SUPPORTS_VALUES_DEFAULT = False
    Tokenizer = Tokenizer
    Parser = QueryParser

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """As written: DuckDB, which runs it, knows best what 'a.b' means."""
        return path


DIALECT = Lakefork()
