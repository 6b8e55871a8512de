"""A model of tables: random DDL and DML by several users against a plain dict of histories, while rows move into batches."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError
from lakefork.sql.engine import Engine
from lakefork.sql.read import hot_cache, select
from lakefork.sql.session import Role
from support.sql_lake import SqlLake

USERS = st.sampled_from(["alice", "bob"])
TABLES = st.sampled_from(["app.own", "app.common"])
KEYS = st.integers(1, 6)
NUMBERS = st.one_of(st.none(), st.integers(-5, 5))
WHERES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "id = 3": lambda row: row["id"] == 3,
    "id IN (1, 2, 9)": lambda row: row["id"] in (1, 2),
    "id > 2 AND n > 0": lambda row: row["id"] > 2 and row["n"] is not None and row["n"] > 0,
    "n IS NULL": lambda row: row["n"] is None,
    "n >= 0 OR id = 1": lambda row: row["id"] == 1 or (row["n"] is not None and row["n"] >= 0),
    "true": lambda _: True,
}


@dataclass
class Rows:
    """One owner's rows: all versions of each key, newest last; a deleted row ends with None."""

    versions: dict[int, list[dict[str, Any] | None]] = field(default_factory=dict)

    def live(self) -> dict[int, dict[str, Any]]:
        return {key: row for key, history in self.versions.items() if (row := history[-1]) is not None}

    def append(self, key: int, row: dict[str, Any] | None) -> None:
        self.versions.setdefault(key, []).append(row)


class SqlMachine(RuleBasedStateMachine):
    engine: Engine
    dsn: str
    root: Path
    numbers = itertools.count()

    @initialize()
    def start(self) -> None:
        name = f"c{next(self.numbers)}"
        with connect(self.dsn) as connection:
            self.lake = SqlLake(self.engine, self.dsn, create_catalog(connection, name, str(self.root / name)))
        self.lake.run(
            "CREATE NAMESPACE app; CREATE USER TABLE app.own (id BIGINT PRIMARY KEY, n INT); "
            "CREATE SHARED TABLE app.common (id BIGINT PRIMARY KEY, n INT)"
        )
        self.model: dict[tuple[str, str | None], Rows] = {}
        self.columns: dict[str, dict[str, Any]] = {"app.own": {}, "app.common": {}}
        self.added = 0

    def _rows(self, table: str, user: str) -> Rows:
        return self.model.setdefault((table, user if table == "app.own" else None), Rows())

    @rule(table=TABLES, user=USERS, keys=st.lists(KEYS, min_size=1, max_size=4), n=NUMBERS, by_place=st.booleans())
    def insert(self, table: str, user: str, keys: list[int], n: int | None, *, by_place: bool) -> None:
        rows = self._rows(table, user)
        refused = len(set(keys)) < len(keys) or any(key in rows.live() for key in keys)
        rest = ", DEFAULT" * len(self.columns[table]) if by_place else ""
        values = ", ".join(f"({key}, {'NULL' if n is None else n}{rest})" for key in keys)
        statement = f"INSERT INTO {table} {'' if by_place else '(id, n) '}VALUES {values}"
        if refused:
            with pytest.raises(ConflictError):
                self.lake.count(statement, user=user, role=Role.SERVICE)
            return
        assert self.lake.count(statement, user=user, role=Role.SERVICE) == len(keys)
        for key in keys:
            rows.append(key, {"id": key, "n": n, **self.columns[table]})

    @rule(table=TABLES, user=USERS, n=NUMBERS)
    def insert_with_generated_key(self, table: str, user: str, n: int | None) -> None:
        for _ in range(2):  # the second time the quick way
            assert self.lake.count(f"INSERT INTO {table} (n) VALUES (?)", n, user=user, role=Role.SERVICE) == 1
        known = self._rows(table, user)
        owner = f" WHERE _user_id = '{user}'" if table == "app.own" else ""
        for (key,) in self.lake.rows(f"SELECT id FROM {table}{owner}"):
            if key not in known.versions:
                known.append(key, {"id": key, "n": n, **self.columns[table]})

    @rule(table=TABLES, user=USERS, where=st.sampled_from(sorted(WHERES)), by=st.integers(-2, 2))
    def update(self, table: str, user: str, where: str, by: int) -> None:
        rows = self._rows(table, user)
        matching = [row for row in rows.live().values() if WHERES[where](row)]
        changed = self.lake.count(
            f"UPDATE {table} SET n = coalesce(n, 0) + {by} WHERE {where}", user=user, role=Role.SERVICE
        )
        assert changed == len(matching)
        for row in matching:
            rows.append(row["id"], {**row, "n": (row["n"] or 0) + by})

    @rule(table=TABLES, user=USERS, where=st.sampled_from(sorted(WHERES)))
    def delete(self, table: str, user: str, where: str) -> None:
        rows = self._rows(table, user)
        matching = [row for row in rows.live().values() if WHERES[where](row)]
        assert self.lake.count(f"DELETE FROM {table} WHERE {where}", user=user, role=Role.SERVICE) == len(matching)
        for row in matching:
            rows.append(row["id"], None)

    @rule(table=TABLES, default=st.one_of(st.none(), st.integers(0, 9)))
    def add_column(self, table: str, default: int | None) -> None:
        self.added += 1
        name = f"x{self.added}"
        self.lake.run(f"ALTER TABLE {table} ADD COLUMN {name} INT{'' if default is None else f' DEFAULT {default}'}")
        self._change_columns(table, lambda row: {**row, name: default})

    @rule(table=TABLES)
    def drop_column(self, table: str) -> None:
        if self.columns[table]:
            name = next(iter(self.columns[table]))
            self.lake.run(f"ALTER TABLE {table} DROP COLUMN {name}")
            self._change_columns(table, lambda row: {key: value for key, value in row.items() if key != name})

    @rule(table=TABLES)
    def rename_and_widen_column(self, table: str) -> None:
        if self.columns[table]:
            self.added += 1
            old, new = next(reversed(self.columns[table])), f"y{self.added}"
            self.lake.run(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}, MODIFY COLUMN {new} BIGINT")
            self._change_columns(table, lambda row: {new if key == old else key: value for key, value in row.items()})

    def _change_columns(self, table: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.columns[table] = change(self.columns[table])
        for (owner, _), rows in self.model.items():
            if owner == table:
                rows.versions = {
                    key: [None if row is None else change(row) for row in history]
                    for key, history in rows.versions.items()
                }

    @rule(table=TABLES, user=USERS, trim=st.booleans())
    def flush(self, table: str, user: str, *, trim: bool) -> None:
        self.lake.flush_by_hand(table, user if table == "app.own" else None, trim=trim)

    @rule(table=TABLES, user=USERS)
    def changes_since(self, table: str, user: str) -> None:
        """_seq > x: the newest version of each row that changed, deleted ones marked."""
        owner = f" AND _user_id = '{user}'" if table == "app.own" else ""
        seqs = sorted(seq for (seq,) in self.lake.rows(f"SELECT _seq FROM {table} WHERE _seq > 0{owner}"))
        if not seqs:
            return
        middle = seqs[len(seqs) // 2]
        found = self.lake.rows(f"SELECT id, _deleted FROM {table} WHERE _seq > {middle}{owner}")
        assert len(found) == sum(seq > middle for seq in seqs)
        for key, deleted in found:
            assert (self._rows(table, user).versions[key][-1] is None) == deleted

    @invariant()
    def each_sees_the_newest_versions(self) -> None:
        for (table, user), rows in self.model.items():
            names = ["id", "n", *self.columns[table]]
            who: dict[str, Any] = {"user": user} if user else {}
            (found,) = self.lake.run(f"SELECT * FROM {table}", **who)
            assert found.columns == [*names, "_seq", "_deleted"]
            expected = sorted(tuple(row[name] for name in names) for row in rows.live().values())
            assert sorted(row[:-2] for row in found.rows) == expected, table


def run_machine(machine: type[SqlMachine], engine: Engine, dsn: str, root: Path, *, examples: int, steps: int) -> None:
    """Few rows are treated as many are: kept in memory, and read while a query runs."""
    machine.engine, machine.dsn, machine.root = engine, dsn, root
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hot_cache, "MIN_ROWS_TO_CACHE", 1)
        patched.setattr(select, "MIN_BATCHES_FOR_VIEW", 1)
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
