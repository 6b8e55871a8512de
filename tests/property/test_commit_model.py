"""Random commits against a plain model: catalogs, tables, files, conflicts, retries, connections that die."""

from copy import deepcopy
from typing import Any

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.lake import resolved_file_id, resolved_id

from lakefork.catalog.catalogs import Catalog, create_catalog, drop_catalog, newest_snapshot, rename_catalog
from lakefork.catalog.commits import Changes, Committed, commit
from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, NotFoundError
from support.lake import add_column, make_catalog, rows_of

DYING = st.sampled_from(["no", "no", "no", "before COMMIT", "after COMMIT"])


class Model:
    """What a catalog database holds: names, and per table its columns and files; one deep copy per snapshot."""

    def __init__(self) -> None:
        self.now: dict[str, dict[int, dict[str, Any]]] = {}
        self.history: dict[int, dict[str, Any]] = {0: {}}

    def record(self, snapshot: int) -> None:
        assert snapshot == max(self.history) + 1, "snapshots have no gaps and follow the order of commits"
        self.history[snapshot] = deepcopy(self.now)


class CommitMachine(RuleBasedStateMachine):
    dsn: str

    @initialize()
    def start(self) -> None:
        self.connection = connect(self.dsn)
        self.prefix = f"r{newest_snapshot(self.connection)}"
        self.model = Model()
        self.model.history = {newest_snapshot(self.connection): {}}
        self.catalogs: dict[str, Catalog] = {}
        self.keys: dict[str, Committed] = {}
        self.number = 0
        for name in (self._next(), self._next()):
            self._create(name)
            for _ in range(2):
                self._create_table(name, "no")

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            for catalog in self.catalogs.values():
                drop_catalog(self.connection, catalog)
            self.connection.close()

    def _next(self) -> str:
        self.number += 1
        return f"{self.prefix}_{self.number}"

    def _commit(self, catalog: str, base: int, changes: Changes, dying: str) -> Committed:
        """Commits by key through a connection that may die; an unknown outcome is settled by the same key again."""
        key = f"key/{self._next()}"
        catalog_id = self.catalogs[catalog].catalog_id
        if dying != "no":
            doomed = connect(self.dsn, autocommit=False)
            commit(doomed, catalog_id, base, changes, commit_key=key)
            if dying == "after COMMIT":
                doomed.commit()
            self.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (doomed.info.backend_pid,))
            try:
                doomed.execute("SELECT 1")
                raise AssertionError("the connection should be dead")
            except psycopg.OperationalError:
                doomed.close()
        done = commit(self.connection, catalog_id, base, changes, commit_key=key)
        assert done.replayed == (dying == "after COMMIT")
        self.keys[key] = done
        return done

    def _base(self, data: Any) -> int:
        return data.draw(st.sampled_from(sorted(self.model.history)))

    def _create(self, name: str) -> None:
        self.catalogs[name] = make_catalog(self.connection, name)
        self.model.now[name] = {}
        self.model.record(self.catalogs[name].begin_snapshot)

    @precondition(lambda self: len(self.catalogs) < 3)
    @rule(data=st.data())
    def create_a_catalog(self, data: Any) -> None:
        name = data.draw(st.sampled_from([self._next(), *self.catalogs]))
        if name in self.catalogs:
            try:
                create_catalog(self.connection, name, f"/lake/{self._next()}")
                raise AssertionError("two live catalogs of one name")
            except ConflictError:
                return
        self._create(name)

    @precondition(lambda self: self.catalogs)
    @rule(data=st.data())
    def rename_a_catalog(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.catalogs)))
        new = self._next()
        self.catalogs[new] = rename_catalog(self.connection, self.catalogs.pop(name), new)
        self.model.now[new] = self.model.now.pop(name)
        self.model.record(self.catalogs[new].begin_snapshot)

    @precondition(lambda self: len(self.catalogs) > 1)
    @rule(data=st.data())
    def drop_a_catalog(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.catalogs)))
        drop_catalog(self.connection, self.catalogs.pop(name))
        del self.model.now[name]
        self.model.record(newest_snapshot(self.connection))

    @precondition(lambda self: self.catalogs and sum(map(len, self.model.now.values())) < 6)
    @rule(data=st.data(), dying=DYING)
    def create_a_table(self, data: Any, dying: str) -> None:
        self._create_table(data.draw(st.sampled_from(sorted(self.catalogs))), dying)

    def _create_table(self, name: str, dying: str) -> None:
        changes = Changes()
        schema_id, table_id = changes.new_id(), changes.new_id()
        changes.add("ducklake_schema", schema_id=schema_id, schema_name=self._next(), path="s", path_is_relative=True)
        changes.add(
            "ducklake_table",
            table_id=table_id,
            schema_id=schema_id,
            table_name="t",
            path=self._next(),
            path_is_relative=True,
        )
        add_column(changes, table_id, 1, "id", "int64")
        done = self._commit(name, newest_snapshot(self.connection), changes, dying)
        self.model.now[name][resolved_id(done, table_id)] = {
            "columns": {"id"},
            "files": {},
            "changed": done.snapshot_id,
        }
        self.model.record(done.snapshot_id)

    def _some_table(self, data: Any) -> tuple[str, int] | None:
        tables = sorted((name, table) for name, held in self.model.now.items() for table in held)
        return data.draw(st.sampled_from(tables)) if tables else None

    @precondition(lambda self: any(self.model.now.values()))
    @rule(data=st.data(), count=st.integers(1, 3), dying=DYING)
    def add_files(self, data: Any, count: int, dying: str) -> None:
        name, table = self._some_table(data)
        changes = Changes()
        added = {}
        for _ in range(count):
            placeholder, path = changes.new_file_id(), self._next()
            changes.add(
                "ducklake_data_file", data_file_id=placeholder, table_id=table, path=path, path_is_relative=True,
                record_count=count, file_size_bytes=7,
            )  # fmt: skip
            added[placeholder] = path
        done = self._commit(name, self._base(data), changes, dying)
        for placeholder, path in added.items():
            self.model.now[name][table]["files"][resolved_file_id(done, placeholder)] = (path, done.snapshot_id)
        self.model.record(done.snapshot_id)

    @precondition(lambda self: any(self.model.now.values()))
    @rule(data=st.data(), dying=DYING)
    def replace_files(self, data: Any, dying: str) -> None:
        """Wins exactly if all replaced files are live and were visible at the base snapshot."""
        name, table = self._some_table(data)
        ever = sorted(
            {
                file
                for held in self.model.history.values()
                for file in held.get(name, {}).get(table, {}).get("files", {})
            }
        )
        ended = data.draw(st.lists(st.sampled_from(ever), unique=True, max_size=3)) if ever else []
        base = self._base(data)
        changes = Changes()
        placeholder, path = changes.new_file_id(), self._next()
        changes.add(
            "ducklake_data_file", data_file_id=placeholder, table_id=table, path=path, path_is_relative=True,
            record_count=1, file_size_bytes=1,
        )  # fmt: skip
        for file in ended:
            changes.end("ducklake_data_file", data_file_id=file)
        files = self.model.now[name][table]["files"]
        wins = all(file in files and files[file][1] <= base for file in ended)
        try:
            done = self._commit(name, base, changes, dying if wins else "no")
        except ConflictError:
            assert not wins
            return
        assert wins
        for file in ended:
            del files[file]
        files[resolved_file_id(done, placeholder)] = (path, done.snapshot_id)
        self.model.record(done.snapshot_id)

    @precondition(lambda self: any(self.model.now.values()))
    @rule(data=st.data(), dying=DYING)
    def alter_a_table(self, data: Any, dying: str) -> None:
        """Wins exactly if the definition did not change after the base snapshot."""
        name, table = self._some_table(data)
        base = self._base(data)
        held = self.model.now[name][table]
        column = self._next()
        changes = Changes()
        changes.require_table_unchanged(table)
        add_column(changes, table, 1000 + self.number, column, "varchar")
        wins = held["changed"] <= base
        try:
            done = self._commit(name, base, changes, dying if wins else "no")
        except ConflictError:
            assert not wins
            return
        assert wins
        held["columns"].add(column)
        held["changed"] = done.snapshot_id
        self.model.record(done.snapshot_id)

    @precondition(lambda self: any(self.model.now.values()))
    @rule(data=st.data(), dying=DYING)
    def drop_a_table(self, data: Any, dying: str) -> None:
        name, table = self._some_table(data)
        changes = Changes()
        changes.end("ducklake_table", table_id=table)
        done = self._commit(name, newest_snapshot(self.connection), changes, dying)
        del self.model.now[name][table]
        self.model.record(done.snapshot_id)

    @precondition(lambda self: self.catalogs)
    @rule(data=st.data())
    def write_into_what_is_gone(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.catalogs)))
        dropped = {table for held in self.model.history.values() for table in held.get(name, {})} - set(
            self.model.now[name]
        )
        if not dropped:
            return
        changes = Changes()
        changes.add(
            "ducklake_data_file", data_file_id=changes.new_file_id(), table_id=max(dropped), path="x", path_is_relative=True,
            record_count=1, file_size_bytes=1,
        )  # fmt: skip
        try:
            self._commit(name, self._base(data), changes, "no")
            raise AssertionError("wrote into a dropped table")
        except NotFoundError:
            pass

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def retry_an_old_commit(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.keys)))
        before = newest_snapshot(self.connection)
        again = commit(self.connection, -1, -1, Changes(), commit_key=key)
        assert again.replayed
        assert (again.snapshot_id, again.first_file_id) == (self.keys[key].snapshot_id, self.keys[key].first_file_id)
        assert newest_snapshot(self.connection) == before

    @invariant()
    def the_present_and_one_earlier_snapshot_are_as_in_the_model(self) -> None:
        if hasattr(self, "connection"):
            snapshots = sorted(self.model.history)
            for snapshot in {snapshots[-1], snapshots[len(snapshots) // 2]}:
                assert self._read(snapshot) == _plain(self.model.history[snapshot])
            assert self._read(None) == _plain(self.model.now)

    def _read(self, snapshot: int | None) -> dict[str, Any]:
        names = rows_of(
            self.connection, "SELECT catalog_id, catalog_name FROM lakefork.visible_catalog(%s) WHERE catalog_name LIKE %s",
            snapshot, f"{self.prefix}\\_%",
        )  # fmt: skip
        return {name: self._read_catalog(catalog_id, snapshot) for catalog_id, name in names}

    def _read_catalog(self, catalog_id: int, snapshot: int | None) -> dict[int, Any]:
        tables = {
            table: {"columns": set(), "files": {}}
            for (table,) in rows_of(
                self.connection, "SELECT table_id FROM lakefork.visible_table(%s, %s)", catalog_id, snapshot
            )
        }
        for table, column in rows_of(
            self.connection, "SELECT table_id, column_name FROM lakefork.visible_column(%s, %s)", catalog_id, snapshot
        ):
            tables[table]["columns"].add(column)
        for table, file, path in rows_of(
            self.connection,
            "SELECT table_id, data_file_id, path FROM lakefork.visible_data_file(%s, %s)",
            catalog_id,
            snapshot,
        ):
            tables[table]["files"][file] = path
        return tables

    @invariant()
    def the_catalog_is_sound(self) -> None:
        if hasattr(self, "connection") and self.number % 5 == 0:
            assert rows_of(self.connection, "SELECT * FROM lakefork.fsck()") == []


def _plain(model: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {
            table: {"columns": held["columns"], "files": {file: path for file, (path, _) in held["files"].items()}}
            for table, held in tables.items()
        }
        for name, tables in model.items()
    }


def test_commits_behave_like_the_model(dsn: str) -> None:
    class Machine(CommitMachine):
        pass

    Machine.dsn = dsn
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        ),
    )  # fmt: skip
