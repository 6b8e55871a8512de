"""fork_provision: many forks, each created once, also concurrently."""

import datetime
import threading
from typing import Any

import pytest

from lakefork.catalog.catalogs import Catalog, find_catalog
from lakefork.catalog.connection import connect
from lakefork.catalog.forks import catalogs_to_drop, drop_in_chunks, fork_catalog, fork_catalogs
from lakefork.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from lakefork.model.durations import seconds_of
from lakefork.model.params import ForkProvisionParams, parse_params
from lakefork.upkeep.forks import plan as provision
from lakefork.upkeep.forks import run as fork_provision
from lakefork.upkeep.forks.plan import chunks_of, plan_provision
from lakefork.upkeep.forks.run import run_fork_provision
from support.flush_lake import FlushLake
from support.fork_lake import no_findings
from support.sql_lake import SqlLake


def make(lake: FlushLake, run_id: str | None = None, **params: Any) -> dict[str, Any]:
    with lake.context(run_id, job="fork_provision") as context:
        return run_fork_provision(context, ForkProvisionParams(**{"parent": "main", **params}))


@pytest.fixture
def parent(flush_lake: FlushLake) -> FlushLake:
    flush_lake.lake.run(
        "CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO app.t VALUES (1, 'a'), (2, 'b')"
    )
    flush_lake.lake.flush_by_hand("app.t")
    flush_lake.lake.run("UPDATE app.t SET v = 'hot' WHERE id = 2")
    return flush_lake


def catalog_of(lake: FlushLake, name: str) -> Catalog:
    with connect(lake.lake.dsn) as connection:
        return find_catalog(connection, name)


def forks(lake: FlushLake) -> list[str]:
    return [
        name
        for (name,) in lake.sql(
            "SELECT catalog_name FROM system.catalogs WHERE parent_catalog_id IS NOT NULL ORDER BY catalog_id"
        )
    ]


def test_names_or_a_prefix(parent: FlushLake) -> None:
    result = make(parent, names=["one", "two"])
    assert (result["forks_created"], result["forks_existing"]) == (2, 0)
    assert 0 < result["ms_per_fork_p50"] <= result["ms_per_fork_p95"] <= result["ms_per_fork_max"]
    assert result["transactions"] == 1 and result["ms_per_transaction_max"] == pytest.approx(
        2 * result["ms_per_fork_max"], abs=0.2
    )
    assert make(parent, name_prefix="agent_", count=3)["forks_created"] == 3
    assert forks(parent) == ["one", "two", "agent_1", "agent_2", "agent_3"]
    for name in forks(parent):
        child = SqlLake(parent.lake.engine, parent.lake.dsn, catalog_of(parent, name))
        assert child.rows("SELECT id, v FROM app.t ORDER BY id") == [(1, "a"), (2, "hot")]
    assert any("3 of 3 fork(s)" in line and "; agent_1 to agent_3 in " in line for line in parent.lines), parent.lines
    assert no_findings(parent.lake)


def test_places_lifetimes_and_snapshots(parent: FlushLake) -> None:
    before = parent.sql("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
    make(parent, names=["x"], data_path_template="/lake/agents/{name}/data", expires_after="2h", as_of=before)
    found = parent.sql(
        "SELECT data_path, round(extract(epoch FROM expires_at - created_at)), forked_at_snapshot FROM system.catalogs WHERE catalog_name = 'x'"
    )
    assert found == [("/lake/agents/x/data", 7200, before)]


def test_a_rerun_makes_what_is_missing(parent: FlushLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "MAX_PER_TRANSACTION", 2)
    real = fork_provision.make_forks
    calls = []

    def fails_at_the_third(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ConnectionResetError("killed")
        return real(*arguments)

    # In the driver, so that the failure can be arranged: what a Spark task does is the same function.
    monkeypatch.setattr(
        fork_provision,
        "_run",
        lambda context, params, parent, chunks: (
            fails_at_the_third(context.dsn, context.run.run_id, params, parent.catalog_id, chunk) for chunk in chunks
        ),
    )
    with pytest.raises(ConnectionResetError):
        make(parent, "run_1", name_prefix="f", count=9)
    assert len(forks(parent)) == 4
    monkeypatch.undo()
    with pytest.raises(AlreadyExistsError, match="fork 'f1' already exists: drop it, or set if_not_exists"):
        make(parent, "run_2", name_prefix="f", count=9)
    result = make(parent, "run_1", name_prefix="f", count=9)
    assert (result["forks_created"], result["forks_existing"]) == (5, 4)
    assert sorted(forks(parent)) == sorted(f"f{number}" for number in range(1, 10))
    assert make(parent, "run_1", name_prefix="f", count=9)["forks_created"] == 0
    assert make(parent, "run_3", name_prefix="f", count=10, if_not_exists=True)["forks_created"] == 1


def test_runs_at_the_same_time_make_each_fork_once(parent: FlushLake) -> None:
    results: list[Any] = []

    def run(number: int) -> None:
        params = ForkProvisionParams(parent="main", name_prefix="f", count=12, if_not_exists=True)
        made = []
        for chunk in chunks_of(params.fork_names, 20_000):
            made.append(
                fork_provision._attempt(parent.lake.dsn, f"run_{number}", params, parent.lake.catalog.catalog_id, chunk)
            )
        results.append(made)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [name for result in results for one in result for name in one.names]
    assert sorted(made) == sorted(f"f{number}" for number in range(1, 13))
    assert no_findings(parent.lake)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ('{"parent": "main"}', "fork_provision: specify names, or name_prefix and count"),
        (
            '{"parent": "main", "names": ["a"], "name_prefix": "b", "count": 1}',
            "specify names, or name_prefix and count",
        ),
        ('{"parent": "main", "name_prefix": "b"}', "specify names, or name_prefix and count"),
        ('{"parent": "main", "names": []}', "names is empty"),
        ('{"parent": "main", "names": ["a", "a"]}', "the name 'a' is given twice"),
        ('{"parent": "main", "names": ["a"], "expires_after": "soon"}', "expires_after = 'soon' is not a duration"),
        ('{"parent": "main", "names": ["a"], "data_path_template": "/lake/x"}', "data_path_template"),
        ('{"parent": "main", "name_prefix": "a", "count": 0}', "count"),
        ('{"names": ["a"]}', "parent"),
    ],
)
def test_parameters_that_make_no_sense(params: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse_params("fork_provision", params)
    assert "\n" not in str(caught.value)


def test_a_failed_fork_is_one_clear_error(parent: FlushLake) -> None:
    with pytest.raises(NotFoundError, match="catalog 'nobody' does not exist"):
        make(parent, parent="nobody", names=["x"])
    with pytest.raises(InvalidInputError, match="catalog name 'a b' is invalid"):
        make(parent, names=["a b"])
    with (
        connect(parent.lake.dsn) as connection,
        pytest.raises(InvalidInputError, match="overlaps that of another new catalog"),
    ):
        fork_catalogs(connection, "main", {"a": "/lake/a", "b": "/lake//a/b/"})
    with connect(parent.lake.dsn) as connection:
        fork_catalog(connection, "main", "stranger")
        connection.execute("UPDATE lakefork.fork SET parent_id = 999")
    with pytest.raises(AlreadyExistsError, match="catalog 'stranger' already exists and is not a fork of this parent"):
        make(parent, names=["stranger"], if_not_exists=True)


def test_nothing_is_made_where_one_of_many_cannot_be(parent: FlushLake) -> None:
    names = [f"f{number}" for number in range(60)]
    for bad, message in (("a b", "catalog name 'a b' is invalid"), ("x" * 101, "is invalid: use up to 100")):
        with pytest.raises(InvalidInputError, match=message):
            make(parent, names=[*names, bad])
    with pytest.raises(InvalidInputError, match="is invalid: use up to 100"):
        make(parent, name_prefix="p" * 98, count=100)
    make(parent, names=["elsewhere"], data_path_template="/lake/of_{name}")
    with pytest.raises(InvalidInputError, match="data path '/lake/of_elsewhere' overlaps that of catalog"):
        make(parent, names=[*names, "where"], data_path_template="/lake/of_else{name}")
    assert forks(parent) == ["elsewhere"]


def test_drop_by_prefix_and_age(parent: FlushLake) -> None:
    make(parent, name_prefix="agent_", count=5)
    make(parent, names=["other"])
    with connect(parent.lake.dsn) as connection:
        connection.execute(
            "UPDATE lakefork.fork SET created_at = created_at - interval '3 hours' WHERE catalog_id % 2 = 0"
        )
        old = catalogs_to_drop(connection, "agent_", datetime.timedelta(seconds=seconds_of("2h", "age")))
        assert 2 <= len(old) <= 3
        assert [*drop_in_chunks(connection, [one.catalog_id for one in old], "test")][-1] == len(old)
        assert [*drop_in_chunks(connection, [one.catalog_id for one in old], "test")][-1] == 0
    assert set(forks(parent)) == {"other", *(f"agent_{number}" for number in range(1, 6))} - {one.name for one in old}
    assert no_findings(parent.lake)


def test_the_plan() -> None:
    taken = {"a": {"parent_id": 1, "run_id": "r1"}, "b": {"parent_id": 1, "run_id": None}}
    plan = plan_provision(["a", "b", "c"], taken, 1, "r2", if_not_exists=True)
    assert (plan.missing, plan.existing) == (("c",), ("a", "b"))
    assert plan_provision(["a", "c"], taken, 1, "r1", if_not_exists=False).existing == ("a",)
    with pytest.raises(AlreadyExistsError, match="not a fork of this parent"):
        plan_provision(["a"], taken, 2, "r1", if_not_exists=True)
    assert [len(chunk) for chunk in chunks_of([str(n) for n in range(120)], 100)] == [50, 50, 20]
    assert [len(chunk) for chunk in chunks_of(["a", "b"], 10**9)] == [1, 1]
    assert sum(len(chunk) for chunk in chunks_of(["a", "b"], 0)) == 2
