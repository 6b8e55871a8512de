"""Scenario 5: random sequences over a growing tree of forks, rows against a model that copies dicts, files against brute force.

A failure names its seed; LAKEFORK_TREE_SEEDS and LAKEFORK_TREE_STEPS (both numbers) make the test longer.
"""

import contextlib
import copy
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakefork.catalog.catalogs import drop_catalog, rename_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.retention import tag_snapshot
from lakefork.errors import LakeforkError, NotFoundError
from lakefork.removal import batches
from lakefork.upkeep.retention import run as retention_gc
from support.cleanup_lake import age_schedule, cleanup, gc, on_disk, referenced
from support.duckdb_client import load_extensions, stock
from support.flush_lake import FlushLake
from support.fork_lake import fork, no_findings
from support.sql_lake import SqlLake

SEEDS = range(int(os.environ.get("LAKEFORK_TREE_SEEDS", "1")))
STEPS = int(os.environ.get("LAKEFORK_TREE_STEPS", "45"))
Rows = dict[int, Any]


class Crash(BaseException):
    pass


class Tree:
    """Catalogs by name, each with what its tables must hold; and what retained snapshots said when they were new."""

    def __init__(self, lake: FlushLake, seed: int) -> None:
        self.flush_lake = lake
        self.dice = random.Random(seed)  # noqa: S311 - it must repeat
        self.lakes = {"main": lake.lake}
        self.rows: dict[str, dict[str, Rows]] = {"main": {}}
        self.history: dict[tuple[int, str, int], list[tuple[Any, ...]]] = {}
        self.numbers = iter(range(10**6))
        lake.lake.run("CREATE NAMESPACE app")
        for _ in range(2):
            self.create_table("main")

    def step(self) -> str:
        name, action = self.dice.choices(
            [*self.ACTIONS.items()], weights=[self.WEIGHTS.get(name, 2) for name in self.ACTIONS]
        )[0]
        action(self)
        return name

    def some_catalog(self) -> str:
        return self.dice.choice(sorted(self.lakes))

    def some_table(self, catalog: str) -> str | None:
        tables = sorted(self.rows[catalog])
        return self.dice.choice(tables) if tables else None

    def create_table(self, catalog: str | None = None) -> None:
        catalog = catalog or self.some_catalog()
        table = f"t{next(self.numbers)}"
        self.lakes[catalog].run(f"CREATE SHARED TABLE app.{table} (id BIGINT PRIMARY KEY, v TEXT)")
        self.rows[catalog][table] = {}

    def drop_table(self) -> None:
        catalog = self.some_catalog()
        if table := self.some_table(catalog):
            self.lakes[catalog].run(f"DROP TABLE app.{table}")
            del self.rows[catalog][table]

    def alter_table(self) -> None:
        catalog = self.some_catalog()
        if table := self.some_table(catalog):
            self.lakes[catalog].run(f"ALTER TABLE app.{table} ADD COLUMN c{next(self.numbers)} INT")

    def write(self) -> None:
        catalog = self.some_catalog()
        if (table := self.some_table(catalog)) is None:
            return
        rows, lake = self.rows[catalog][table], self.lakes[catalog]
        key, value = self.dice.randrange(12), f"v{next(self.numbers)}"
        if key in rows and self.dice.random() < 0.4:
            lake.run(f"DELETE FROM app.{table} WHERE id = {key}")
            del rows[key]
        elif key in rows:
            lake.run(f"UPDATE app.{table} SET v = '{value}' WHERE id = {key}")
            rows[key] = value
        else:
            lake.run(f"INSERT INTO app.{table} (id, v) VALUES ({key}, '{value}')")
            rows[key] = value

    def fork(self) -> None:
        if len(self.lakes) >= 7:
            return
        parent, name = self.some_catalog(), f"f{next(self.numbers)}"
        self.lakes[name] = fork(self.lakes[parent], name)
        self.rows[name] = copy.deepcopy(self.rows[parent])

    def fork_the_past(self) -> None:
        """Of a snapshot at which all that was remembered of the parent is known."""
        parent = self.some_catalog()
        catalog_id = self.lakes[parent].catalog.catalog_id
        snapshots = sorted({snapshot for one, _, snapshot in self.history if one == catalog_id})
        if not snapshots or len(self.lakes) >= 7:
            return
        then, name = self.dice.choice(snapshots), f"p{next(self.numbers)}"
        held = {table: rows for (one, table, at), rows in self.history.items() if (one, at) == (catalog_id, then)}
        with contextlib.suppress(NotFoundError):
            self.lakes[name] = fork(self.lakes[parent], name, as_of=then)
            self.rows[name] = {table: {row[0]: row[1] for row in rows} for table, rows in held.items()}

    def rename(self) -> None:
        catalog, name = self.some_catalog(), f"r{next(self.numbers)}"
        if catalog != "main":
            lake = self.lakes.pop(catalog)
            with connect(lake.dsn) as connection:
                self.lakes[name] = SqlLake(lake.engine, lake.dsn, rename_catalog(connection, lake.catalog, name))
            self.rows[name] = self.rows.pop(catalog)

    def drop(self) -> None:
        catalog = self.some_catalog()
        if catalog != "main":
            with connect(self.flush_lake.lake.dsn) as connection:
                drop_catalog(connection, self.lakes.pop(catalog).catalog)
            del self.rows[catalog]

    def flush(self) -> None:
        self.flush_lake.flush()
        self.remember()

    def dedup(self) -> None:
        self.flush_lake.dedup()
        self.remember()

    def tag(self) -> None:
        catalog = self.some_catalog()
        (newest,) = self.flush_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0]
        with connect(self.flush_lake.lake.dsn) as connection, contextlib.suppress(NotFoundError):
            tag_snapshot(connection, catalog, newest - self.dice.randrange(4), f"tag{next(self.numbers)}")

    def expire(self) -> None:
        self.maybe_killed(
            retention_gc, ("remove_files", "remove_definitions", "drop_unused_hot_tables", "finish_plan"),
            lambda: gc(self.flush_lake, retain_snapshots=self.dice.randrange(1, 4)),
        )  # fmt: skip

    def clean(self) -> None:
        age_schedule(self.flush_lake)
        self.maybe_killed(batches, ("remove_files", "finish_deletions"), lambda: cleanup(self.flush_lake))

    def maybe_killed(self, module: Any, steps: tuple[str, ...], action: Callable[[], Any]) -> None:
        with pytest.MonkeyPatch.context() as patched:
            if self.dice.random() < 0.4:
                _crash_in(patched, module, self.dice.choice(steps), late=self.dice.random() < 0.5)
            with contextlib.suppress(Crash):
                action()

    ACTIONS: dict[str, Callable[["Tree"], None]] = {  # noqa: RUF012 - filled below, once the methods are there
        "write": write, "create_table": create_table, "drop_table": drop_table, "alter_table": alter_table, "fork": fork,
        "fork_the_past": fork_the_past,
        "rename": rename, "drop": drop, "flush": flush, "dedup": dedup, "tag": tag, "expire": expire, "clean": clean,
    }  # fmt: skip
    WEIGHTS = {"write": 16, "flush": 4, "fork": 4, "expire": 4, "clean": 4, "create_table": 1, "tag": 1}  # noqa: RUF012

    def remember(self) -> None:
        """What the newest snapshot says of every table."""
        (newest,) = self.flush_lake.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0]
        for catalog, lake in self.lakes.items():
            for table in self.rows[catalog]:
                self.history[lake.catalog.catalog_id, table, newest] = _at(lake, table, newest)

    def check(self) -> None:
        for catalog, tables in self.rows.items():
            for table, expected in tables.items():
                found = dict(self.lakes[catalog].rows(f"SELECT id, v FROM app.{table}"))
                assert found == expected, (catalog, table)
        by_id = {lake.catalog.catalog_id: lake for lake in self.lakes.values()}
        for (catalog_id, table, snapshot), expected_rows in self.history.items():
            if catalog_id in by_id:
                with contextlib.suppress(NotFoundError):
                    assert _at(by_id[catalog_id], table, snapshot) == expected_rows, (catalog_id, table, snapshot)
        root = Path(self.flush_lake.lake.catalog.data_path).parent
        assert referenced(self.flush_lake) <= on_disk(root), "every file that any catalog has is there"
        assert no_findings(self.flush_lake.lake)

    def check_outside(self) -> None:
        """Stock DuckDB has all catalogs, and of each table the rows of one exact state: ours, once it is deduplicated."""
        for catalog in self.lakes:
            self.flush_lake.dedup(catalog=catalog)
        for catalog, tables in self.rows.items():
            with stock(self.flush_lake.lake.dsn, catalog) as duck:
                for table in tables:
                    found = duck.execute(f"SELECT id, v FROM lake.app.{table} ORDER BY id").fetchall()
                    assert found == sorted(self.rows[catalog][table].items()), (catalog, table)

    def check_that_all_is_freed(self) -> None:
        """Without tags and old snapshots, the files are those that live catalogs have now, found by brute force."""
        with connect(self.flush_lake.lake.dsn) as connection:
            connection.execute("DELETE FROM lakefork.snapshot_tag")
        self.flush_lake.flush()
        self.check_outside()
        for lake in self.lakes.values():
            lake.run(f"CREATE NAMESPACE last{next(self.numbers)}")  # so that all before it can go
        for _ in range(2):
            gc(self.flush_lake, retain_snapshots=1)
        age_schedule(self.flush_lake)
        cleanup(self.flush_lake)
        self.check()
        files = self.flush_lake.sql("SELECT data_file_id, catalog_id, end_snapshot FROM ducklake_data_file")
        live = {lake.catalog.catalog_id for lake in self.lakes.values()}
        assert all(catalog in live and end is None for _, catalog, end in files)
        root = Path(self.flush_lake.lake.catalog.data_path).parent
        assert on_disk(root) == referenced(self.flush_lake), "nothing is left over"


def _at(lake: SqlLake, table: str, snapshot: int) -> list[tuple[Any, ...]]:
    return lake.rows(f"SELECT * FROM app.{table} AT (VERSION => {snapshot}) ORDER BY id")


def _crash_in(patched: pytest.MonkeyPatch, module: Any, name: str, *, late: bool) -> None:
    real = getattr(module, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        if late:
            real(*arguments, **named)
        raise Crash(name)

    patched.setattr(module, name, dying)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_trees_of_forks_lose_and_leak_nothing(flush_lake: FlushLake, seed: int) -> None:
    load_extensions()
    tree = Tree(flush_lake, seed)
    done = []
    try:
        for number in range(STEPS):
            done.append(tree.step())
            if number % 5 == 4:
                tree.check()
        tree.check_that_all_is_freed()
    except (AssertionError, LakeforkError) as error:
        error.add_note(f"seed {seed}, after: {', '.join(done)}")
        raise
