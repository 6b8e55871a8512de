"""Random statements, flushes, merges, changes of definitions, forks and collections, with backups in between: each restores to its moment."""

import random
from typing import Any

import pytest

from lakefork.catalog.connection import connect
from lakefork.catalog.forks import fork_catalog
from lakefork.errors import LakeforkError
from support.backup_lake import BackupLake
from support.cleanup_lake import age_schedule, cleanup, gc

STEPS, BACKUPS = 40, 6

pytestmark = pytest.mark.usefixtures("in_this_process")


class Machine:
    """Does one thing after the other, and remembers what readers saw when a backup was made."""

    def __init__(self, lake: BackupLake, seed: int) -> None:
        self.lake = lake
        self.dice = random.Random(seed)  # noqa: S311 - repeatable
        self.states: dict[str, Any] = {}
        self.columns = 0

    def step(self) -> None:
        action = self.dice.choices(
            [self.change, self.flush, self.dedup, self.alter, self.collect, self.back_up], [8, 2, 1, 2, 1, 2]
        )[0]
        action()

    def change(self) -> None:
        table, user = self.dice.choice([("app.ours", None), ("app.mine", "ada"), ("app.mine", "eve")])
        first = self.dice.randrange(30)
        keys = ", ".join(f"({key})" for key in range(first, first + 5))
        for text in (
            f"INSERT INTO {table} (id) SELECT k FROM (VALUES {keys}) AS x (k)",
            f"UPDATE {table} SET v = 'v{self.dice.randrange(99)}' WHERE id % 3 = {self.dice.randrange(3)}",
            f"DELETE FROM {table} WHERE id = {self.dice.randrange(30)}",
        ):
            if self.dice.random() < 0.6:
                try:
                    self.lake.run(text, user=user)
                except LakeforkError as error:
                    assert "exists already" in str(error) or "already exists" in str(error)

    def flush(self) -> None:
        self.lake.flush_lake.flush()

    def dedup(self) -> None:
        self.lake.flush_lake.dedup()

    def alter(self) -> None:
        self.columns += 1
        defined = [row[1] for row in self.lake.rows("DESCRIBE TABLE app.ours") if row[0] == "column"]
        extra = [name for name in defined if name.startswith("extra")]
        changes = [f"ADD COLUMN extra{self.columns} INT DEFAULT {self.columns}"]
        if extra:
            changes += [f"DROP COLUMN {extra[0]}", f"RENAME COLUMN {extra[-1]} TO extra_{self.columns}"]
        self.lake.run(f"ALTER TABLE app.ours {self.dice.choice(changes)}")

    def collect(self) -> None:
        gc(self.lake.flush_lake, retain_snapshots=2)
        age_schedule(self.lake.flush_lake)
        cleanup(self.lake.flush_lake)

    def back_up(self) -> None:
        done = self.lake.backup(incremental=self.dice.random() < 0.7, keep=BACKUPS)
        self.states[done["backup_id"]] = self.lake.state()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_backups_under_random_changes_restore_to_their_moment(backup_lake: BackupLake, seed: int) -> None:
    machine = Machine(backup_lake, seed)
    for _ in range(STEPS):
        machine.step()
    machine.back_up()
    with connect(backup_lake.flush_lake.lake.dsn) as connection:
        fork_catalog(connection, "main", "fork")
    for number, backup_id in enumerate(list(machine.states)[-BACKUPS:]):
        source = f"{backup_lake.place}/backups/{backup_id}"
        backup_lake.restore(source, namespace=f"n{number}", catalog=machine.dice.choice(["main", "fork"]))
        found = [
            backup_lake.state(f"n{number}", catalog)
            for catalog in ("main", "fork")
            if f"n{number}" in [row[0] for row in backup_lake.rows("SHOW NAMESPACES", catalog=catalog)]
        ]
        assert found == [machine.states[backup_id]]
    assert backup_lake.fsck() == []
