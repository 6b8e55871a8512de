"""Permission rules: which tables and rows a user may access."""

from dataclasses import dataclass
from typing import NoReturn

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from lakefork.model.tables import fold
from lakefork.sql.parse.dialect import DIALECT, QueryParser
from lakefork.sql.parse.name_patterns import is_pattern, matches, problem_of, quoted_pattern
from lakefork.sql.parse.tokens import PositionedError, read, show, syntax_errors

ALLOWED = (
    exp.Identifier,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Neg,
    exp.CurrentUser,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Paren,
    exp.In,
    exp.Like,
    exp.Between,
    exp.Is,
)


IN_PATTERNS = frozenset(
    {
        TokenType.R_BRACKET,
        TokenType.R_PAREN,
        TokenType.L_BRACE,
        TokenType.R_BRACE,
        TokenType.PIPE,
        TokenType.PLUS,
        TokenType.PLACEHOLDER,
        TokenType.BACKSLASH,
    }
)
IN_BRACKETS = frozenset({TokenType.CARET, TokenType.DASH, TokenType.COMMA})
OPENING, CLOSING = {TokenType.L_BRACKET, TokenType.L_BRACE}, {TokenType.R_BRACKET, TokenType.R_BRACE}


@dataclass(frozen=True)
class Rule:
    """A rule. column and condition are None for whole tables; names may be patterns (name_patterns.py)."""

    namespace_pattern: str
    table_pattern: str
    column: str | None
    condition: exp.Expression | None

    @property
    def is_pattern(self) -> bool:
        """Tells whether the rule may match more than one table."""
        return is_pattern(self.namespace_pattern) or is_pattern(self.table_pattern)

    def matches(self, namespace: str, table: str) -> bool:
        """Tells whether the rule matches a table; messages.* matches messages and every table whose name starts with
        it.
        """
        return matches(self.namespace_pattern, namespace) and matches(self.table_pattern, table)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def _described(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return f"function {node.name}"
    return f"function {node.sql_name()}" if isinstance(node, exp.Func) else type(node).__name__


def parse_rule(text: str) -> Rule:
    """Parses ns.table, ns.*, ns.messages.*, or ns.table.column followed by a condition on that column."""
    with syntax_errors(text):
        statements = read(text)
        if len(statements) != 1:
            raise PositionedError("expected one rule such as ns.table, ns.* or ns.table.column = 'x'", 0)
        return RuleParser(dialect=DIALECT).rule(statements[0], text)


class RuleParser(QueryParser):
    def rule(self, tokens: list[Token], text: str) -> Rule:
        self.load(tokens, text)
        path = [self._part(patterns=True)]
        while self._match(TokenType.DOT):
            path.append(self._part(patterns=len(path) == 1))
        if self._curr:
            return self._row_rule(path, tokens)
        if len(path) == 3 and path[2].startswith("*"):
            return Rule(path[0], f"{path[1]}.{path[2]}", None, None)
        if len(path) == 3:
            self.expected(f"a condition on column '{path[2]}'")
        if len(path) != 2:
            self.fail(f"a rule names namespace and table, found {len(path)} names", tokens[0])
        return Rule(path[0], path[1], None, None)

    def _part(self, *, patterns: bool) -> str:
        """Parses one name of the path: words, stars and pattern characters, without spaces."""
        if not self._starts_part(patterns=patterns):
            self.expected("a name or *")
        first, tokens = self._curr, list[Token]()
        while not tokens or (self._continues_part(tokens, patterns=patterns) and self._is_connected()):
            token = self._curr
            if token.token_type == TokenType.IDENTIFIER and ("*" in token.text or not token.text):
                self.fail("a quoted name in a rule must not be empty or contain a *")
            tokens.append(token)
            self._advance()
        part = "".join(self._text(token, alone=len(tokens) == 1) for token in tokens)
        if problem := problem_of(part):
            self.fail(f"the pattern {_shortened(part)} is invalid: {problem}", first)
        return part

    def _text(self, token: Token, *, alone: bool) -> str:
        if token.token_type == TokenType.IDENTIFIER:
            return quoted_pattern(token.text, alone=alone)
        return self.sql[token.start : token.end + 1]

    def _starts_part(self, *, patterns: bool) -> bool:
        token = self._curr
        if token.token_type in (TokenType.STAR, TokenType.IDENTIFIER):
            return True
        if patterns and token.token_type in (TokenType.L_BRACKET, TokenType.L_PAREN):
            return True
        word = bool(token) and token.token_type not in self.TEXT_MATCH_EXCLUDED_TOKENS
        return word and token.text.replace("_", "a").isalnum() and token.token_type != TokenType.NUMBER

    def _continues_part(self, before: list[Token], *, patterns: bool) -> bool:
        if not patterns or self._starts_part(patterns=patterns):
            return self._starts_part(patterns=patterns)
        kind = self._curr.token_type
        if kind in IN_BRACKETS:
            return sum((one.token_type in OPENING) - (one.token_type in CLOSING) for one in before) > 0
        return kind in IN_PATTERNS or (kind == TokenType.NUMBER and self._curr.text.isdecimal())

    def _row_rule(self, path: list[str], tokens: list[Token]) -> Rule:
        if len(path) != 3 or "*" in path[2]:
            self.fail(f"a row filter must name namespace, table and column before {show(self._curr, self.sql)}")
        start = self._prev
        column = Token(TokenType.IDENTIFIER, path[2], start.line, start.col, start.start, start.end)
        self.load([column, *tokens[self._index :]], self.sql)
        try:
            condition = self.concrete(self._parse_disjunction())
            self.finish()
            self.check_depth()
        except RecursionError:
            raise PositionedError("the condition is nested too deeply", column.start) from None
        self._check(condition, path[2])
        return Rule(path[0], path[1], path[2], condition)

    def _check(self, condition: exp.Expression, column: str) -> None:
        for node in condition.walk():
            if isinstance(node, exp.Column):
                if node.table or fold(node.name) != fold(column):
                    self._reject(f"column '{node.name}'", column)
            elif not isinstance(node, ALLOWED) or (isinstance(node, exp.CurrentUser) and node.this):
                self._reject(_described(node), column)
            elif isinstance(node, exp.In) and not node.expressions:
                self._reject("IN without a list", column)

    def _reject(self, what: str, column: str) -> NoReturn:
        first = self._tokens[0]
        self.fail(f"a row filter compares column '{column}' with constants and CURRENT_USER(), found {what}", first)
