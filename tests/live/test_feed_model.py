"""A model of the change feed: random transactions, some late, some rolled back; every committed version is seen once."""

import os
import random
from collections import Counter
from typing import Any

import psycopg
import pytest

from lakefork.catalog.connection import connect
from lakefork.hot.changes import Cursor, Position, current_position, ensure_mark
from lakefork.hot.snapshots import PgSnapshot
from lakefork.live.versions import Change, read_changes
from support.sql_lake import SqlLake

STEPS = int(os.environ.get("LIVE_MODEL_STEPS", "150"))  # per seed
KEYS, WRITERS, USERS = 12, 6, ("ada", "bob", "cy")


class Model:
    """Writers with transactions of their own on one table, and a reader of its changes."""

    def __init__(self, lake: SqlLake, table: str, seed: int) -> None:
        self.lake, self.random = lake, random.Random(seed)  # noqa: S311 - a model
        lake.run(f"INSERT INTO {table} (id) VALUES (-1)", user="nobody")
        self.table, self.found = table, lake.find(table)
        self.hot = self.found.hot[0].qualified
        self.writers = [psycopg.connect(lake.dsn) for _ in range(WRITERS)]
        self.held: list[set[tuple[str, int]]] = [set() for _ in range(WRITERS)]  # keys that a transaction has locked
        self.committed: set[int] = set()
        self.pending: list[list[int]] = [[] for _ in range(WRITERS)]
        self.seen: Counter[int] = Counter()
        self.copy: dict[tuple[str, Any], int | None] = {}
        with connect(lake.dsn) as connection:
            ensure_mark(connection)
        self.position = self.now()

    def now(self) -> Position:
        with self.lake.engine.resources.readers.transaction() as connection:
            return current_position(connection)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def step(self) -> None:
        place = self.random.randrange(WRITERS)
        action = self.random.choices(
            [self.write, self.commit, self.roll_back, self.savepoint, self.other, self.look], [6, 3, 1, 1, 1, 3]
        )[0]
        action(place)

    def write(self, place: int) -> None:
        """A version of a key that no other open transaction writes, as locks see to it."""
        taken = set().union(*(held for other, held in enumerate(self.held) if other != place))
        user, key = self.random.choice(USERS), self.random.randrange(KEYS)
        if (user, key) in taken:
            return
        seq = int(self.lake.engine.resources.seqids.next())
        self.held[place].add((user, key))
        self.pending[place].append(seq)
        self.writers[place].execute(
            f"INSERT INTO {self.hot} (catalog_id, _user_id, _seq, _deleted, c4, c6) VALUES (%s, %s, %s, %s, %s, %s)",
            (self.found.definition.catalog_id, user, seq, self.random.random() < 0.2, key, self.random.randrange(100)),
        )

    def commit(self, place: int) -> None:
        self.writers[place].commit()
        self.committed |= set(self.pending[place])
        self._forget(place)

    def roll_back(self, place: int) -> None:
        self.writers[place].rollback()
        self._forget(place)

    def savepoint(self, place: int) -> None:
        """What is written within is committed or rolled back alone."""
        self.writers[place].execute("SELECT 1")  # begins a transaction, in which the next one is a savepoint
        before = len(self.pending[place])
        keep = self.random.random() < 0.5
        with self.writers[place].transaction() as savepoint:
            self.write(place)
            if not keep:
                raise psycopg.Rollback(savepoint)
        if not keep:
            del self.pending[place][before:]

    def other(self, _: int) -> None:
        """Through the engine, which sees what is committed."""
        free = [k for k in range(KEYS) if all(("dee", k) not in held for held in self.held)]
        self.lake.run(f"DELETE FROM {self.table} WHERE id = ?", self.random.choice(free), user="dee")
        self.lake.run(
            f"INSERT INTO {self.table} (id, n) VALUES (?, 1)", self.random.randrange(1_000, 10**9), user="dee"
        )

    def look(self, _: int = 0) -> None:
        resources = self.lake.engine.resources
        with resources.readers.transaction() as connection:
            until = current_position(connection)
            found = read_changes(
                connection, resources.own_workers, self.found, self.position, until, check_trimmed=True
            )
        assert found.lost is None
        assert not found.lost_owners
        for change in found.changes:
            self.apply(change)
        self.position = until

    def apply(self, change: Change) -> None:
        row = change.row
        key = (row.owner or "", row.values[0])
        self.seen[row.seq] += 1
        old = None if change.old is None or change.old.is_deleted else change.old.values[2]
        assert self.copy.get(key) == old
        self.copy[key] = None if row.is_deleted else row.values[2]

    def check(self) -> None:
        """At a quiet moment: nothing is open, and everything was read."""
        self.look()
        assert set(self.seen.values()) <= {1}
        assert self.committed <= set(self.seen)
        for user in (*USERS, "dee"):
            rows = dict(self.lake.rows(f"SELECT id, n FROM {self.table}", user=user))
            assert {key: n for (owner, key), n in self.copy.items() if owner == user and n is not None} == rows

    def _forget(self, place: int) -> None:
        self.pending[place], self.held[place] = [], set()


@pytest.mark.parametrize("seed", range(3))
def test_every_committed_version_is_seen_once(lake: SqlLake, ns: str, seed: int) -> None:
    model = Model(lake, f"{ns}.t", seed)
    try:
        for _ in range(3):
            for _ in range(STEPS // 3):
                model.step()
            for place in range(WRITERS):
                (model.commit if place % 2 else model.roll_back)(place)
            model.check()
    finally:
        model.close()


@pytest.mark.parametrize(
    ("text", "xid", "sees"),
    [
        ("10:20:12,15", 9, True),
        ("10:20:12,15", 12, False),
        ("10:20:12,15", 13, True),
        ("10:20:12,15", 20, False),
        ("5:5:", 4, True),
    ],
)
def test_what_a_snapshot_sees(text: str, xid: int, sees: bool) -> None:
    assert PgSnapshot(text).sees(xid) is sees


@pytest.mark.parametrize(
    ("this", "other", "includes"),
    [
        ("10:20:12", "10:20:12", True), ("10:20:", "10:20:12", True), ("10:20:12", "10:20:", False),
        ("10:25:22", "10:20:", True), ("10:25:12", "10:20:12,15", True), ("10:20:", "10:25:", False),
    ],
)  # fmt: skip
def test_which_snapshot_includes_another(this: str, other: str, includes: bool) -> None:
    assert PgSnapshot(this).includes(PgSnapshot(other)) is includes


def test_a_cursor_is_a_text_that_says_where_it_is_from() -> None:
    position = Position("123-45", 1, "00000000-0000-0000-0000-000000000001", 77, PgSnapshot("10:20:12,15"))
    for cursor in (
        Cursor(position, 3, 4, "abcdef"),
        Cursor(position, 3, 4, "abcdef", PgSnapshot("20:30:"), 99),
    ):
        assert Cursor.parse(str(cursor)) == cursor
    assert cursor.has_delivered(25, 99)
    assert not cursor.has_delivered(25, 100)
    assert not cursor.has_delivered(31, 5)
