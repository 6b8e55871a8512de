"""Scenario 28: each row of a table lies in exactly one part, whatever its keys, and whatever the sample."""

import json
import random

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.transfer.postgres_copy.plan import (
    Column,
    Patterns,
    Table,
    sample_percent,
    select_statement,
    split_by_block,
    split_by_key,
    wanted_parts,
    workers_of,
)
from support.copy_lab import CopyLab

SMALLEST, LARGEST = -(2**63), 2**63 - 1
EDGES = [SMALLEST, SMALLEST + 1, -1, 0, 1, LARGEST - 1, LARGEST, 2**60, -(2**60)]
keys = st.sets(st.one_of(st.integers(SMALLEST, LARGEST), st.sampled_from(EDGES)))


def holds(condition: str | None, key: int | None) -> bool:
    """As SQL reads a condition of a part."""
    if condition is None:
        return True
    if key is None:
        return condition.endswith('"k" IS NULL)')
    return bool(
        eval(  # noqa: S307 - conditions of ours
            condition.replace(" IS NULL", " is None")
            .replace('"k"', "k")
            .replace(" OR ", " or ")
            .replace(" AND ", " and "),
            {"k": key},
        )
    )


@settings(max_examples=200, deadline=None)
@given(keys, st.integers(1, 30), st.randoms(use_true_random=False))
def test_each_key_lies_in_exactly_one_part(found: set[int], parts: int, chance: random.Random) -> None:
    sample = sorted(key for key in found if chance.random() < 0.7)
    conditions = [part.condition for part in split_by_key("k", sample, parts)]
    for key in [*found, *EDGES, None]:
        assert sum(holds(condition, key) for condition in conditions) == 1, (key, conditions)
    assert len(conditions) <= max(parts, 1)


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_ranges_of_blocks_meet_and_the_last_is_open(blocks: int, parts: int) -> None:
    found = split_by_block(blocks, parts)
    if len(found) == 1:
        assert found[0].condition is None
        return
    bounds = [one.condition or "" for one in found]
    ends = [bound.rpartition("ctid < ")[2] for bound in bounds[:-1]]
    starts = [bound.partition("ctid >= ")[2].partition(" AND")[0] for bound in bounds[1:]]
    assert ends == starts and "<" not in bounds[-1] and ">=" not in bounds[0]


def test_parts_are_the_size_divided_by_the_threshold_rounded_up() -> None:
    table = Table(1, "s", "t", 400, 1000, 10_000, (Column("k", "bigint", 20, True, False, True),), "k")
    assert [wanted_parts(table, size) for size in (0, 100, 250, 400, 399)] == [1, 4, 2, 1, 2]
    assert wanted_parts(Table(1, "s", "t", 400, 1, 1, ()), 100) == 1, "neither key nor blocks"
    assert 0 < sample_percent(table, 4) <= 100
    assert [workers_of({"table": 4, "index": 4}, slots) for slots in (1, 2, 3, 100)] == [
        [8],
        [4, 4],
        [3, 3, 2],
        [1] * 8,
    ]


def test_patterns() -> None:
    some = Patterns(["app.*", "log.day_*_x"], without=True)
    assert [some.match(*name) for name in (("app", "a"), ("log", "day_1_x"), ("log", "day"), ("apple", "a"))] == [
        True,
        True,
        False,
        False,
    ]
    assert Patterns(None, without=True).match("a", "b") and not Patterns([], without=False).match("a", "b")
    assert some.without_match([("app", "x")]) == ["log.day_*_x"]


def parts_of(lab: CopyLab, table: str) -> list[tuple[str, int, str]]:
    return [
        (json.dumps(condition), rows, name)
        for condition, rows, name in lab.catalog(
            "SELECT s.detail -> 'condition', s.rows, s.name FROM lakefork.copy_step s JOIN lakefork.copy_table t USING (copy_id, table_oid) "
            "WHERE t.name = %s AND s.kind = 'part' ORDER BY step_id", table,
        )
    ]  # fmt: skip


def test_scenario_28_edges_of_keys_in_a_copy(lab: CopyLab) -> None:
    """NULLs, both ends, gaps, one value only, an empty table, all rows on one page, a table without a key."""
    pad = "repeat('x', 800)"
    lab.on_source(f"""
        CREATE TABLE edges (k bigint UNIQUE, v text);
        INSERT INTO edges SELECT NULL, {pad} FROM generate_series(1, 500);
        INSERT INTO edges SELECT k, {pad} FROM unnest(ARRAY[{SMALLEST}, -1, 0, {LARGEST}, {2**60}, {-(2**60)}]) k;
        INSERT INTO edges SELECT k, {pad} FROM generate_series(1000, 4000) k;
        CREATE TABLE one_value (k bigint UNIQUE, v text); INSERT INTO one_value SELECT NULL, {pad} FROM generate_series(1, 3000); INSERT INTO one_value VALUES (5, 'x');
        CREATE TABLE keyless (v text); INSERT INTO keyless SELECT n || {pad} FROM generate_series(1, 4000) n;
        CREATE TABLE deleted (k int PRIMARY KEY, v text); INSERT INTO deleted SELECT n, {pad} FROM generate_series(1, 4000) n; DELETE FROM deleted WHERE k < 3990;
        CREATE TABLE none (k int PRIMARY KEY); CREATE TABLE emptied (k int PRIMARY KEY, v text); INSERT INTO emptied SELECT n, {pad} FROM generate_series(1, 2000) n;
        DELETE FROM emptied; CREATE TABLE one_page (k int PRIMARY KEY); INSERT INTO one_page SELECT generate_series(1, 50);
        ANALYZE;
    """)
    found = lab.copy(split_larger_than="500KB")
    assert found["rows"] == 500 + 6 + 3001 + 3001 + 4000 + 11 + 50
    assert len(parts_of(lab, "edges")) > 2 and len(parts_of(lab, "keyless")) > 2 and parts_of(lab, "none") == []
    assert sum(rows for _, rows, _ in parts_of(lab, "edges")) == 3507
    with psycopg.connect(lab.target) as target, target.cursor() as cursor:
        duplicated = cursor.execute("SELECT count(*), count(DISTINCT v) FROM keyless").fetchone()
    assert duplicated == (4000, 4000)


def test_names_are_quoted() -> None:
    table = Table(1, 's"', "t'", 0, 0, 0, (Column('a"b', "text", 25, False, False, True),))
    assert select_statement(table, None) == 'SELECT "a""b" FROM ONLY "s"""."t\'"'
