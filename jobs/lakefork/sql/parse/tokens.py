"""Splits a text into the tokens of its statements; checks limits and mistakes that tokens show."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import ClassVar

from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.errors import InvalidInputError

MAX_TEXT = 1_048_576
MAX_TOKENS = 200_000
MAX_DEPTH = 100
MAX_SELECTS = 1_000  # planning time grows with the square of their number
SHOWN = 40
MAX_MESSAGE = 200

OPENING = {TokenType.L_PAREN: ")", TokenType.L_BRACKET: "]", TokenType.L_BRACE: "}"}
CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})


class SqlSyntaxError(InvalidInputError):
    """The text is not valid SQL for Lakefork; line and column are None if the error has no position."""

    code = "syntax_error"

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(f"{message} (line {line}, column {column})" if line else message)
        self.line = line
        self.column = column


class PositionedError(ParseError):
    """A mistake at an offset of the text; sqlglot catches it where it tries several interpretations."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


@contextmanager
def syntax_errors(text: str) -> Iterator[None]:
    """Translates any error inside to one sentence."""
    try:
        yield
    except PositionedError as failure:
        raise _placed(failure.message, text, failure.offset) from None
    except Exception as error:
        # sqlglot does not document which exceptions it raises.
        raise SqlSyntaxError(f"the text cannot be read as SQL: {type(error).__name__}") from error


def _placed(message: str, text: str, offset: int) -> SqlSyntaxError:
    line = text.count("\n", 0, offset) + 1
    return SqlSyntaxError(_printable(message, MAX_MESSAGE), line, offset - text.rfind("\n", 0, offset))


def _printable(text: str, limit: int) -> str:
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else "�" for char in short)


def show(token: Token, text: str) -> str:
    """Returns a token as written, shortened and printable."""
    if not token:
        return "the end of the statement"
    printable = _printable(text[token.start : token.end + 1], SHOWN)
    return printable if token.token_type in (TokenType.STRING, TokenType.IDENTIFIER) else f"'{printable}'"


class Tokenizer(DuckDB.Tokenizer):
    """Tokenizes without commands, whose rest would be one string, and without dollar quotes, which conflict with
    $1,$2.
    """

    COMMANDS: ClassVar[set[TokenType]] = set()
    HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
    # ?:: would hide the parameter of ?::INT.
    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        **{word: kind for word, kind in DuckDB.Tokenizer.KEYWORDS.items() if word not in ("?::", "??", "|>")},
        "BYTES": TokenType.VARBINARY,
    }


# sqlglot accepts comments of a template language in every dialect.
del Tokenizer._COMMENTS["{#"]


def read(text: str) -> list[list[Token]]:
    """Returns the tokens of every non-empty statement, with balanced brackets, valid commas and numbered parameters."""
    statements = split(text)
    for tokens in statements:
        check_statement(tokens, text)
    return statements


def split(text: str) -> list[list[Token]]:
    """Splits a text into the tokens of its statements, unchecked."""
    if len(text) > MAX_TEXT:
        raise PositionedError(f"the text has {len(text)} characters, the limit is {MAX_TEXT}", 0)
    _check_characters(text)
    tokens = _tokenize(text)
    if len(tokens) > MAX_TOKENS:
        raise PositionedError(f"the text has {len(tokens)} tokens, the limit is {MAX_TOKENS}; split it", 0)
    _number_parameters(tokens, text)
    chunks: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            chunks.append([])
        else:
            chunks[-1].append(token)
    return [chunk for chunk in chunks if chunk]


def check_statement(tokens: Sequence[Token], text: str) -> None:
    """Raises unless a statement has valid brackets and commas, and few enough SELECTs to be parsed at all."""
    if sum(token.token_type == TokenType.SELECT for token in tokens) > MAX_SELECTS:
        raise too_many(MAX_SELECTS, "queries", tokens[0])
    _check_brackets(tokens, text)
    _check_methods(tokens)
    _check_commas(tokens, text)


def too_many(most: int, what: str, first: Token) -> PositionedError:
    return PositionedError(f"more than {most} {what} in one statement; split it", first.start)


def _check_characters(text: str) -> None:
    if (place := text.find("\0")) >= 0:
        raise PositionedError("the text contains a NUL character", place)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PositionedError("the text contains half of a surrogate pair", error.start) from None


def _tokenize(text: str) -> list[Token]:
    tokenizer = Tokenizer(dialect=DuckDB)
    try:
        return tokenizer.tokenize(text)
    except TokenError:
        start = tokenizer._core._start
        for opening, what in (("'", "string"), ('"', "quoted name"), ("/*", "comment")):
            if text.startswith(opening, start):
                raise PositionedError(f"the {what} that starts here is never closed", start) from None
        raise PositionedError(f"cannot read {show(Token.var(text[start : start + 1]), text[start:])}", start) from None


def _check_brackets(tokens: Sequence[Token], text: str) -> None:
    stack: list[Token] = []
    for token in tokens:
        kind = token.token_type
        if kind in OPENING:
            stack.append(token)
            if len(stack) > MAX_DEPTH:
                raise PositionedError(
                    f"the statement is nested too deeply, the limit is {MAX_DEPTH} brackets", token.start
                )
        elif kind in CLOSING and (not stack or OPENING[stack.pop().token_type] != token.text):
            raise PositionedError(f"{show(token, text)} does not close an open bracket", token.start)
    if stack:
        raise PositionedError(f"{show(stack[-1], text)} is never closed", stack[-1].start)


def _check_methods(tokens: Sequence[Token]) -> None:
    # sqlglot needs quadratic time for a().b().c()…
    calls = [token for token, after in pairwise(tokens) if token.token_type in CLOSING and after.text == "."]
    if len(calls) > MAX_DEPTH:
        raise PositionedError(f"more than {MAX_DEPTH} calls with a dot", calls[MAX_DEPTH].start)


def _check_commas(tokens: Sequence[Token], text: str) -> None:
    # sqlglot silently drops an empty list item: VALUES (1,,2) would have two values.
    previous: TokenType = TokenType.COMMA
    for token in tokens:
        kind = token.token_type
        if (kind == TokenType.COMMA and (previous == TokenType.COMMA or previous in OPENING)) or (
            previous == TokenType.COMMA and kind in CLOSING
        ):
            raise PositionedError(f"expected an item of the list, found {show(token, text)}", token.start)
        previous = kind
    if previous == TokenType.COMMA:
        raise PositionedError("expected an item of the list, found the end of the statement", tokens[-1].end + 1)


def _number_parameters(tokens: Sequence[Token], text: str) -> None:
    """Numbers each ?, because a tree does not keep their order."""
    styles: set[TokenType] = set()
    count = 0
    for index, token in enumerate(tokens):
        if token.token_type not in (TokenType.PLACEHOLDER, TokenType.PARAMETER):
            continue
        if token.token_type == TokenType.PARAMETER and not _numbered(tokens, index):
            raise PositionedError(f"parameters must be ? or $1, found {_after(tokens, index, text)}", token.start)
        styles.add(token.token_type)
        if len(styles) > 1:
            raise PositionedError("parameters must be either ? or $1, not both", token.start)
        if token.token_type == TokenType.PLACEHOLDER:
            count += 1
            token.text = str(count)


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
