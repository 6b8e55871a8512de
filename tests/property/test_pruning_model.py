"""Skipping batches never changes an answer: random histories, schemas and conditions, with everything read as the judge."""

import datetime
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefork.read import probing
from lakefork.read.pruning import Batch, ScanPlan
from lakefork.sql.read import select
from support.sql_lake import SqlLake

numbers = itertools.count()
KEYS = st.integers(1, 6)
VALUES: dict[str, list[str]] = {
    "n": ["NULL", "-3", "0", "1", "2", "7"],
    "f": ["NULL", "0.5", "-1.25", "'nan'::DOUBLE", "'inf'::DOUBLE", "-0.0", "2"],
    "s": ["NULL", "''", "'a'", "'ab'", "'b'", "'é'"],
    "t": [
        "NULL",
        "TIMESTAMP '2025-01-01 00:00:00'",
        "TIMESTAMP '2025-03-01 12:30:00.5'",
        "TIMESTAMP '1969-12-31 23:59:59'",
    ],
    "z": ["NULL", "TIMESTAMPTZ '2025-01-01 00:00:00+00:00'", "TIMESTAMPTZ '2025-01-01 03:00:00+02:00'"],
    "d": ["NULL", "0.05", "-1.50", "12.25"],
    "day": ["NULL", "DATE '2025-01-01'", "DATE '2024-02-29'"],
}
MORE_CONSTANTS = {
    "n": ["1.5", "3000000000"], "f": ["0", "1", "0.1"], "s": ["'aa'", "'zzz'"], "t": ["'2025-01-01'", "DATE '2025-03-02'"],
    "z": ["'2025-01-01 01:00:00'"], "d": ["1", "0.055", "-2"], "day": ["'2024-12-31'"],
}  # fmt: skip


@st.composite
def conditions(draw: st.DrawFn) -> str:
    """About the columns, the key, _seq and _updated."""
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        column = draw(st.sampled_from([*VALUES, "id", "_updated"]))
        if column == "_updated":
            parts.append(f"_updated {draw(st.sampled_from(['<', '<=', '>', '>=']))} {{moment}}")
            continue
        constants = st.sampled_from(
            [*VALUES[column], *MORE_CONSTANTS[column]] if column != "id" else ["1", "2", "4", "9"]
        )
        kind = draw(st.sampled_from(["compare", "compare", "mirrored", "in", "between", "null", "or"]))
        op, value, other = draw(st.sampled_from(["=", "<", "<=", ">", ">=", "<>"])), draw(constants), draw(constants)
        parts.append(
            {
                "compare": f"{column} {op} {value}",
                "mirrored": f"{value} {op} {column}",
                "in": f"{column} IN ({value}, {other})",
                "between": f"{column} BETWEEN {value} AND {other}",
                "null": f"{column} IS {'NOT ' if op == '=' else ''}NULL",
                "or": f"({column} {op} {value} OR id = 3)",
            }[kind]
        )
    return " AND ".join(parts)


PUT = st.tuples(
    st.just("put"), KEYS, st.fixed_dictionaries({name: st.sampled_from(found) for name, found in VALUES.items()})
)
CHANGE = st.one_of(
    PUT, PUT, PUT, st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("alter"), st.sampled_from(["rename", "swap", "widen", "add", "replace"])),
)  # fmt: skip
BATCH = st.lists(CHANGE, min_size=1, max_size=4).map(lambda changes: [*changes, ("flush",)])
STEPS = st.tuples(st.lists(BATCH, min_size=1, max_size=5), st.lists(CHANGE, max_size=2)).map(
    lambda found: [step for batch in found[0] for step in batch] + found[1]
)


class Table:
    """Plays a history: rows in batches and hot ones, under changing definitions."""

    def __init__(self, lake: SqlLake) -> None:
        self.lake = lake
        self.name = f"app.t{next(numbers)}"
        self.alive: set[int] = set()
        self.altered: set[str] = set()
        self.flushed = 0
        lake.run(
            f"CREATE SHARED TABLE {self.name} (id BIGINT PRIMARY KEY, n INT, other INT DEFAULT 2, f DOUBLE, s TEXT, t TIMESTAMP, z TIMESTAMPTZ, "
            "d DECIMAL(6,2), day DATE) WITH (bloom_filters = 'n, s, day')"
        )

    def play(self, steps: Sequence[tuple[Any, ...]]) -> None:
        for step in steps:
            getattr(self, step[0])(*step[1:])

    def put(self, key: int, values: dict[str, str]) -> None:
        if key in self.alive:
            self.lake.run(
                f"UPDATE {self.name} SET {', '.join(f'{c} = {v}' for c, v in values.items())} WHERE id = {key}"
            )
        else:
            self.lake.run(
                f"INSERT INTO {self.name} (id, {', '.join(values)}) VALUES ({key}, {', '.join(values.values())})"
            )
        self.alive.add(key)

    def delete(self, key: int) -> None:
        self.lake.run(f"DELETE FROM {self.name} WHERE id = {key}")
        self.alive.discard(key)

    def flush(self) -> None:
        """Every other one leaves its rows in the hot store, as a real one does."""
        newest = self.lake.rows(f"SELECT max(_seq) FROM {self.name} WHERE _seq > {self.flushed}")[0][0]
        if newest is not None:
            self.lake.flush_by_hand(self.name, trim=newest % 2 == 0, since=self.flushed)
            self.flushed = newest

    def alter(self, what: str) -> None:
        if what in self.altered:
            return
        self.altered.add(what)
        statement = {
            "rename": ["RENAME COLUMN s TO old_s", "RENAME COLUMN old_s TO s"],
            "swap": ["RENAME COLUMN n TO m", "RENAME COLUMN other TO n", "RENAME COLUMN m TO other"],
            "widen": ["MODIFY COLUMN n BIGINT"],
            "add": ["ADD COLUMN extra INT DEFAULT 1"],
            "replace": ["DROP COLUMN day", "ADD COLUMN day DATE DEFAULT '2025-01-01'"],
        }[what]
        for one in statement:
            self.lake.run(f"ALTER TABLE {self.name} {one}")


@contextmanager
def everything_is_read() -> Iterator[None]:
    """The judge: all batches, all grouped, nothing told early but what the hot store is asked."""

    def plan_all(batches: Sequence[Batch], *_: Any, **__: Any) -> ScanPlan:
        return ScanPlan(grouped=list(batches))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(probing, "plan_scan", plan_all)
        patched.setattr(probing, "can_be_probed", lambda _: False)
        yield


@pytest.fixture(scope="module")
def lake(module_lake: SqlLake) -> SqlLake:
    module_lake.run("CREATE NAMESPACE app")
    return module_lake


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, where=st.lists(conditions(), min_size=5, max_size=10))
def test_pruned_is_unpruned(lake: SqlLake, steps: list[tuple[Any, ...]], where: list[str]) -> None:
    table = Table(lake)
    table.play(steps)
    moments = [row[0] for row in lake.rows(f"SELECT _updated FROM {table.name} WHERE _seq > 0 ORDER BY 1")]
    middle = moments[len(moments) // 2] if moments else datetime.datetime.now(datetime.UTC)
    for place, condition in enumerate(where):
        query = f"SELECT * FROM {table.name} WHERE {condition.replace('{moment}', f'''TIMESTAMPTZ '{middle}' ''')} ORDER BY id"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(select, "MIN_BATCHES_FOR_VIEW", 1 + 7 * (place % 2))
            patched.setattr(probing, "MIN_BATCHES_TO_PROBE", 1)
            found = repr(lake.rows(query))
        with everything_is_read():
            assert found == repr(lake.rows(query)), query
