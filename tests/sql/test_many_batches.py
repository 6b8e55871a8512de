"""Tables of many batches are read while the query runs, by a DuckDB that can open these files and nothing else."""

from pathlib import Path

import duckdb
import pytest

from lakefork.errors import LakeforkError
from lakefork.sql.read import select
from lakefork.sql.workers.duck import Duck
from lakefork.storage import StorageOptions
from support.sql_lake import SqlLake


@pytest.fixture(scope="module")
def app(module_lake: SqlLake) -> SqlLake:
    """12 batches of 100 keys each, of two users; one more table whose rows nobody may reach from there."""
    lake = module_lake
    lake.run(
        "CREATE NAMESPACE app; CREATE USER TABLE app.t (id BIGINT PRIMARY KEY, n INT, s TEXT); "
        "CREATE SHARED TABLE app.secret (id BIGINT PRIMARY KEY, v TEXT); INSERT INTO app.secret VALUES (1, 'secret')"
    )
    lake.flush_by_hand("app.secret")
    for user in ("ada", "bob"):
        newest = 0
        for first in range(0, 1200, 100):
            lake.run(
                f"INSERT INTO app.t SELECT i, i % 7, '{user}' || i FROM range({first}, {first + 100}) r(i)", user=user
            )
            lake.flush_by_hand("app.t", user, since=newest)
            newest = lake.rows("SELECT max(_seq) FROM app.t", user=user)[0][0]
    return lake


def test_it_is_used_and_answers_the_same(app: SqlLake, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT n, count(*), min(s), max(_updated) > TIMESTAMPTZ '2025-01-01 00:00:00+00' FROM app.t WHERE id >= 50 GROUP BY n ORDER BY n"
    opened = []
    workers = app.engine._resources.workers
    real = workers.stream
    monkeypatch.setattr(workers, "stream", lambda request: opened.append(request.paths) or real(request))
    found = app.rows(query, user="ada")
    assert len(opened) == 1 and len(opened[0]) == 12
    assert app.rows("SELECT * FROM app.t ORDER BY id LIMIT 1", user="ada")[0][:3] == (0, 0, "ada0")
    assert app.rows("SELECT count(*) FROM app.t") == [(2400,)], "all users"
    monkeypatch.setattr(select, "MIN_BATCHES_FOR_VIEW", 1_000)
    assert app.rows(query, user="ada") == found


def test_rows_that_are_not_in_batches_count_too(app: SqlLake) -> None:
    app.run("INSERT INTO app.t VALUES (5000, 1, 'hot')", user="bob")
    assert app.rows("SELECT count(*), max(id) FROM app.t", user="bob") == [(1201, 5000)]
    app.run("DELETE FROM app.t WHERE id = 5000", user="bob")
    assert app.rows("SELECT count(*), max(id) FROM app.t", user="bob") == [(1200, 1199)]


@pytest.mark.parametrize(
    "stolen",
    [
        "current_setting('allowed_paths')::text", "(SELECT sql FROM duckdb_views() LIMIT 1)",
        "(SELECT v FROM read_parquet('{secret}'))", "(SELECT s FROM read_parquet('{other}') LIMIT 1)",
        "(SELECT v FROM '{secret}')", "(SELECT content FROM read_text('{other}'))", "(SELECT file FROM glob('{root}/**') LIMIT 1)",
    ],
)  # fmt: skip
def test_nothing_else_can_be_reached(app: SqlLake, stolen: str) -> None:
    root = Path(app.catalog.data_path) / "app"
    secret = next((root / "secret").rglob("*.parquet"))
    other = next((root / "t" / "user_bob").glob("*.parquet"))
    text = stolen.format(secret=secret, other=other, root=root)
    with pytest.raises(LakeforkError) as caught:
        app.rows(f"SELECT count(*), {text} FROM app.t", user="ada")
    assert "batch-" not in str(caught.value).replace(text, "")


def test_the_database_itself_opens_nothing_else(app: SqlLake) -> None:
    """Should a text ever get past the grammar."""
    root = Path(app.catalog.data_path) / "app"
    mine = tuple(sorted(str(path) for path in (root / "t" / "user_ada").glob("*.parquet")))
    secret = next((root / "secret").rglob("*.parquet"))
    database = Duck(StorageOptions(), memory_mb=64, threads=1)._with(mine)
    assert database.execute(f"SELECT count(*) AS n FROM read_parquet({list(mine)!r})").fetchall() == [(1200,)]
    for text in (
        f"SELECT * FROM read_parquet('{secret}')", "SET allowed_paths = ['/']", "SET enable_external_access = true",
        f"COPY (SELECT 1) TO '{root}/x.parquet'", f"COPY (SELECT 1) TO '{mine[0]}'",
        "INSTALL httpfs", "ATTACH '/tmp/x.duckdb'",
    ):  # fmt: skip
        with pytest.raises(duckdb.Error):
            database.execute(text)
