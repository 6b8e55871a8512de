"""Rules of system.users: every form that is understood, every refusal with its sentence and its place."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from lakefork.sql.parse.grammar import Rule, SqlSyntaxError, parse_rule
from support.sql_texts import END, soup, sql


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["", "ns.t", "ns.t.a ", "ns.t.a = ", "*."]), soup | st.text())
def test_any_rule_is_parsed_or_a_syntax_error(start: str, text: str) -> None:
    try:
        rule = parse_rule(start + text)
    except SqlSyntaxError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(rule.matches("ns", "t"), bool)


@pytest.mark.parametrize(
    ("text", "namespace", "table", "column", "condition"),
    [
        ("ns.t", "ns", "t", None, None),
        ("ns.*", "ns", "*", None, None),
        ("*.*", "*", "*", None, None),
        ("ns.messages.*", "ns", "messages.*", None, None),
        ("ns.msg_*", "ns", "msg_*", None, None),
        ('"N s"."T.t"', "N s", "T.t", None, None),
        (" ns . t -- here", "ns", "t", None, None),
        ("ns.user.*", "ns", "user.*", None, None),
        ("ns.t.user_id = CURRENT_USER()", "ns", "t", "user_id", '"user_id" = CURRENT_USER()'),
        ("production.*.created_by = current_user()", "production", "*", "created_by", '"created_by" = CURRENT_USER()'),
        ("*.t.a IN ('a', 'b')", "*", "t", "a", "\"a\" IN ('a', 'b')"),
        ("ns.t.level <= 3", "ns", "t", "level", '"level" <= 3'),
        ("ns.t.level > -3 AND level < 5", "ns", "t", "level", '"level" > -3 AND level < 5'),
        ("ns.t.name LIKE 'x%'", "ns", "t", "name", "\"name\" LIKE 'x%'"),
        ("ns.t.name NOT LIKE 'x%'", "ns", "t", "name", "\"name\" NOT LIKE 'x%'"),
        ("ns.t.a BETWEEN 1 AND 2", "ns", "t", "a", '"a" BETWEEN 1 AND 2'),
        ("ns.t.a IS NULL OR a <> 'x'", "ns", "t", "a", "\"a\" IS NULL OR a <> 'x'"),
        ("ns.t.a IS NOT NULL", "ns", "t", "a", 'NOT "a" IS NULL'),
        ('ns.t."C c" = TRUE', "ns", "t", "C c", '"C c" = TRUE'),
        ("ns.shared_table[0-9]", "ns", "shared_table[0-9]", None, None),
        ("n[sx].(a|b)+", "n[sx]", "(a|b)+", None, None),
        ("ns.t\\d{2,3}", "ns", "t\\d{2,3}", None, None),
        ("ns.a_.*_b", "ns", "a_.*_b", None, None),
        ('ns."a[0]"', "ns", "a\\[0\\]", None, None),
        ("ns.shared_table[0-9].a = 'x'", "ns", "shared_table[0-9]", "a", "\"a\" = 'x'"),
        ("ns.t?.a = '[0-9].b'", "ns", "t?", "a", "\"a\" = '[0-9].b'"),
        ("ns.t[0-9]*.a='x'", "ns", "t[0-9]*", "a", "\"a\" = 'x'"),
    ],
)
def test_a_rule(text: str, namespace: str, table: str, column: str | None, condition: str | None) -> None:
    found = parse_rule(text)
    assert (found.namespace_pattern, found.table_pattern, found.column) == (namespace, table, column)
    assert sql(found.condition) == condition
    assert not column or {node.name.casefold() for node in found.condition.find_all(exp.Column)} == {column.casefold()}


ONE_RULE = "expected one rule such as ns.table, ns.* or ns.table.column = 'x'"
ONLY = "a row filter compares column 'a' with constants and CURRENT_USER(), found"


@pytest.mark.parametrize(
    ("text", "sentence", "column"),
    [
        ("", ONE_RULE, 1),
        ("-- nothing", ONE_RULE, 1),
        ("a.b; c.d", ONE_RULE, 1),
        ("ns", "a rule names namespace and table, found 1 names", 1),
        ("a.b.c.d", "a rule names namespace and table, found 4 names", 1),
        ("ns.t.a", f"expected a condition on column 'a', {END}", 7),
        ("ns..t", "expected a name or *, found '.'", 4),
        ("ns.t.", f"expected a name or *, {END}", 6),
        ("ns.'t'", "expected a name or *, found 't'", 4),
        ("ns.2024", "expected a name or *, found '2024'", 4),
        ('ns."a*"', "a quoted name in a rule must not be empty or contain a *", 4),
        ("ns.t = 1", "a row filter must name namespace, table and column before '='", 6),
        ("ns.t.* = 1", "a row filter must name namespace, table and column before '='", 8),
        ("ns.t[0-9] = 1", "a row filter must name namespace, table and column before '='", 11),
        ("ns.t[0-9].a", f"expected a condition on column 'a', {END}", 12),
        ("ns.t [0-9]", "a row filter must name namespace, table and column before '['", 6),
        ("ns.a,b", "a row filter must name namespace, table and column before ','", 5),
        ("ns.t-1", "a row filter must name namespace, table and column before '-'", 5),
        ("ns.t.a[0] = 1", f"{ONLY} Bracket", 6),
        ("ns.t[0-9", "'[' is never closed", 5),
        ("ns.a)|(b", "')' does not close an open bracket", 5),
        ("ns.t[9-0]", "the pattern 't[9-0]' is invalid: invalid character class range: 9-0", 4),
        ("ns.(?=a)b", "the pattern '(?' is invalid: invalid perl operator: (?", 4),
        ("ns.(a{99}){99}", "the pattern '(a{99}){99}' is invalid: invalid repetition size: {99}", 4),
        ("ns.t\\b", "the pattern 't\\\\b' is invalid: \\b is not supported, only \\d, \\w and \\s", 4),
        ("ns." + "a?" * 151, f"the pattern '{'a?' * 29}a…' is invalid: it has more than 300 characters", 4),
        ("ns.t.a = b", f"{ONLY} column 'b'", 6),
        ("ns.t.a = t.a", f"{ONLY} column 'a'", 6),
        ("ns.t.a = f(1)", f"{ONLY} function f", 6),
        ("ns.t.a = lower('X')", f"{ONLY} function LOWER", 6),
        ("ns.t.a IN (SELECT 1)", f"{ONLY} IN without a list", 6),
        ("ns.t.a = (SELECT 1)", f"{ONLY} Subquery", 6),
        ("ns.t.a IN b", f"{ONLY} IN without a list", 6),
        ("ns.t.a = ?", f"{ONLY} Placeholder", 6),
        ("ns.t.a + 1 = 2", f"{ONLY} Add", 6),
        ("ns.t.a::INT = 2", f"{ONLY} function CAST", 6),
        ("ns.t.a = 1 b", "unexpected 'b'", 12),
        ("ns.t.a =", f"something is missing before {END.removeprefix('found ')}", 9),
        ("ns.t.a = 'x", "the string that starts here is never closed", 10),
        ("ns.t.a = " + "NOT " * 5_000 + "1", "the condition is nested too deeply", 6),
    ],
)
def test_a_rule_that_is_refused(text: str, sentence: str, column: int) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_rule(text)
    assert str(caught.value) == f"{sentence} (line 1, column {column})"


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("ns.t", ["ns.t", "NS.T"], ["ns.t2", "ns2.t", "n.t"]),
        ("ns.*", ["ns.t", "ns.x"], ["ns2.t", "n.t"]),
        ("*.*", ["a.b"], []),
        ("*.t", ["a.t"], ["a.t2"]),
        ("ns.messages.*", ["ns.messages", "ns.messages_2024", "Ns.Messages2"], ["ns.message", "ns.my_messages"]),
        ("p*d.a*b*c", ["prod.abc", "pd.a1b2c", "PD.abbcc"], ["pro.abc", "prod.acb", "prod.ab", "prod.abcd"]),
        ("ns.a*a", ["ns.aa", "ns.aba"], ["ns.a"]),
        ('ns."x.y"', ["ns.x.y"], ["ns.xzy"]),
        (
            "ns.shared_table[0-9]",
            ["ns.shared_table1", "NS.Shared_Table9"],
            ["ns.shared_table", "ns.shared_table10", "ns.xshared_table1"],
        ),
        ("ns.T[A-C]x?", ["ns.ta", "ns.TBX"], ["ns.td", "ns.tbxx"]),
        ("n[sx].(a|bc)", ["ns.a", "nx.bc"], ["ny.a", "ns.ab", "ns.abc"]),
        ("ns.a|bc", ["ns.a", "ns.bc"], ["ns.ac", "ns.ab", "ns.xbc"]),
        ("ns.t[0-9]*", ["ns.t", "ns.t12"], ["ns.ta", "ns.t1a"]),
        ("ns.t[0-9].*", ["ns.t1", "ns.t1_old"], ["ns.t", "ns.ta1"]),
        ("ns.t*[0-9]", ["ns.t1", "ns.table_9"], ["ns.table"]),
        ("ns.t[*]", ["ns.t*"], ["ns.tt", "ns.t."]),
        ("ns.t\\D", ["ns.tx"], ["ns.t1"]),
        ("ns.a_.*_b", ["ns.a__b", "ns.a_x_b"], ["ns.a_b", "ns.a_x_bc"]),
        ('ns."a[0]"', ["ns.a[0]"], ["ns.a0"]),
        ('ns."a."*', ["ns.a.", "ns.a.b"], ["ns.ab", "ns.a"]),
        ('ns."a+"[0-9]', ["ns.a+1"], ["ns.aa1"]),
    ],
)
def test_a_rule_matches_names_in_any_case(pattern: str, matching: list[str], other: list[str]) -> None:
    rule = parse_rule(pattern)
    for name in matching:
        assert rule.matches(*name.split(".", 1)), name
    for name in other:
        assert not rule.matches(*name.split(".", 1)), name


@pytest.mark.parametrize(
    "pattern", ["*a" * 500 + "b", "(a+)+b", "(a|aa)+b", "(a*)*(a*)*b", "a?" * 100 + "a" * 100 + "b", "(a{1,30}){1,30}b"]
)
def test_a_pattern_is_matched_quickly_whatever_it_is(pattern: str) -> None:
    rule = Rule("*", pattern, None, None)
    started = time.process_time()
    assert not rule.matches("ns", "a" * 5_000)
    assert time.process_time() - started < 1
