"""Random statements, flushes and crashes: readers see the model at every step, and so do strangers in the files."""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from pyspark import SparkContext

from lakefork.errors import NotFoundError
from lakefork.manifests import write as manifest_task
from lakefork.settings import FlushSettings, Settings
from lakefork.sql.engine import Engine
from lakefork.upkeep.dedup import run as dedup
from lakefork.upkeep.flush import publish as flush_publish
from lakefork.upkeep.flush import run as flush
from support.flush_lake import FlushLake
from support.sql_model import SqlMachine, run_machine

CRASHES: list[tuple[Any, str] | None] = [
    None, (flush, "plan_flush"), (flush, "publish_all"), (flush_publish, "publish"), (flush, "sync_manifests"),
    (manifest_task, "replace_file"),
]  # fmt: skip


DEDUP_CRASHES: list[tuple[Any, str] | None] = [
    None, None, (dedup, "_parts"), (dedup, "_publish"), (dedup, "_commit"), (dedup, "write_pending"),
]  # fmt: skip


class Crash(BaseException):
    pass


class FlushMachine(SqlMachine):
    settings: Settings
    run_ids = itertools.count()

    @initialize()
    def start(self) -> None:
        super().start()
        self.flush_lake = FlushLake(self.lake, self.settings, self.root / "no expectations")
        self.run_id = "none yet"

    def flush(self, table: str, user: str, *, trim: bool) -> None:
        """Not by hand: there are real ones."""

    @rule(
        whose=st.sampled_from([{}, {"table": "own"}, {"table": "common"}, {"user_id": "alice"}]),
        crash=st.sampled_from(CRASHES), late=st.booleans(), again=st.booleans(),
    )  # fmt: skip
    def flush_really(self, whose: dict[str, str], crash: tuple[Any, str] | None, *, late: bool, again: bool) -> None:
        """again: the run that was started last, as Airflow's retry does."""
        if not again:
            self.run_id = f"run {next(self.run_ids)}"
        with pytest.MonkeyPatch.context() as patched:
            if crash:
                _crash_in(patched, *crash, late=late)
            try:
                self.flush_lake.flush(run_id=self.run_id, catalog=self.lake.catalog.name, **whose)
            except Crash:
                return

    @rule()
    def flush_all_and_look_at_the_files(self) -> None:
        catalog = self.lake.catalog.name
        self.flush_lake.flush(catalog=catalog)
        for table, per_user in (("app.own", True), ("app.common", False)):
            found = {
                (row["_user_id"] if per_user else None, row["id"]): row["n"]
                for row in self.flush_lake.newest_as_dicts(table)
            }
            expected = {
                (user, key): row["n"]
                for (owner, user), rows in self.model.items()
                if owner == table
                for key, row in rows.live().items()
            }
            assert found == expected, table
            by_duckdb = {
                (row.pop("_user_id") if per_user else None, row["id"]): row
                for row in self.flush_lake.newest_by_field_ids(table)
            }
            every_column = {
                (user, key): row
                for (owner, user), rows in self.model.items()
                if owner == table
                for key, row in rows.live().items()
            }
            assert by_duckdb == every_column, table
        known = self.flush_lake.sql(
            "SELECT path FROM lakefork.file_reference WHERE catalog_id = %s", self.lake.catalog.catalog_id
        )
        assert set(self.flush_lake.files_on_disk()) == {path for (path,) in known}, "old snapshots need the others"

    @rule(crash=st.sampled_from(DEDUP_CRASHES), late=st.booleans())
    def dedup_really(self, crash: tuple[Any, str] | None, *, late: bool) -> None:
        before = self.history(self.last_snapshots())
        with pytest.MonkeyPatch.context() as patched:
            if crash:
                _crash_in(patched, *crash, late=late)
            with contextlib.suppress(Crash):
                self.flush_lake.dedup(catalog=self.lake.catalog.name)
        assert self.history(before) == before, "retained snapshots read as before"

    def last_snapshots(self) -> list[int]:
        found = self.flush_lake.sql(
            "SELECT snapshot_id FROM ducklake_snapshot_changes WHERE catalog_id = %s ORDER BY 1 DESC LIMIT 4",
            self.lake.catalog.catalog_id,
        )
        return [snapshot for (snapshot,) in found]

    def history(self, snapshots: Iterable[int]) -> dict[int, list[tuple[Any, ...]]]:
        """What the files of one table said then."""
        rows = {}
        for snapshot in snapshots:
            with contextlib.suppress(NotFoundError):
                rows[snapshot] = self.lake.rows(f"SELECT * FROM app.own AT (VERSION => {snapshot}) ORDER BY ALL")
        return rows


def _crash_in(patched: pytest.MonkeyPatch, owner: Any, name: str, *, late: bool) -> None:
    real = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        if late:
            real(*arguments, **named)
        raise Crash(name)

    patched.setattr(owner, name, dying)


def test_random_flushes_and_crashes_lose_nothing(
    dsn: str, data_dir: Path, spark: SparkContext, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("lakefork.upkeep.flush.plan.SMALLEST_SLICE", 3)
    FlushMachine.settings = make_settings(flush=FlushSettings(slice_rows=5))
    with Engine(make_settings(), dsn) as engine:
        run_machine(FlushMachine, engine, dsn, data_dir, examples=6, steps=20)
