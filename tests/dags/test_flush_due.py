"""Whether a run of the flush DAG goes on to start Spark."""

import pytest

from lakefork.model.params import FlushParams
from support.flush_lake import FlushLake

PARAMS = FlushParams().model_dump()
LEAVE_A_MANIFEST = """INSERT INTO lakefork.manifest_pending
    SELECT catalog_id, table_id, user_id, directory, 'dead' FROM lakefork.manifest_cache RETURNING 1"""


@pytest.fixture(autouse=True)
def _a_table(flush_lake: FlushLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKEFORK", flush_lake.lake.dsn)
    flush_lake.lake.run("CREATE NAMESPACE app; CREATE SHARED TABLE app.t (id BIGINT PRIMARY KEY) FLUSH POLICY ROWS 3")


def test_it_does_when_rows_are_due(flush_lake: FlushLake, capsys: pytest.CaptureFixture[str]) -> None:
    from lakefork.orchestration.flush import is_flush_due

    flush_lake.lake.run("INSERT INTO app.t VALUES (1), (2)")
    assert not is_flush_due(PARAMS)
    assert capsys.readouterr().out == "nothing is due\n"
    assert is_flush_due({**PARAMS, "force": True})
    flush_lake.lake.run("INSERT INTO app.t VALUES (3)")
    assert is_flush_due(PARAMS)
    assert "due (rows): 1 user(s) of 1 table(s), 3 versions\n" in capsys.readouterr().out
    assert not is_flush_due({**PARAMS, "namespace": "elsewhere"})


def test_leftovers_of_a_dead_run_are_due_and_trimmable_rows_are_not(flush_lake: FlushLake) -> None:
    from lakefork.orchestration.flush import is_flush_due

    flush_lake.lake.run("INSERT INTO app.t VALUES (1), (2), (3)")
    flush_lake.flush(force=False)
    assert flush_lake.hot_rows() == 3, "the next flush trims them"
    assert not is_flush_due(PARAMS)
    flush_lake.sql(LEAVE_A_MANIFEST)
    assert is_flush_due(PARAMS)


def test_events_are_evicted_also_when_nothing_is_due(flush_lake: FlushLake) -> None:
    """Whoever wrote them may be gone, and no server need run."""
    from lakefork.orchestration.flush import is_flush_due

    lake = flush_lake.lake
    lake.run("CREATE STREAM TABLE app.s (n BIGINT)")
    lake.run("INSERT INTO app.s VALUES (1)", user="ada")
    lake.engine._resources.eviction.close()
    events = f"stream.t{lake.find('app.s').definition.table_id}"
    flush_lake.sql("UPDATE lakefork.stream_buffer SET look_at = now() RETURNING 1")
    flush_lake.sql(f"UPDATE {events} SET _at = now() - interval '2 hours' RETURNING 1")
    assert not is_flush_due(PARAMS)
    assert flush_lake.sql(f"SELECT count(*) FROM {events}") == [(0,)]
