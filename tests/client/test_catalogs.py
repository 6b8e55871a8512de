"""Which catalog and tables stock DuckDB sees; never another role's."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest

from lakefork.catalog.catalogs import drop_catalog, find_catalog
from lakefork.catalog.connection import Connection, connect
from lakefork.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from lakefork.transfer.client import create_client_role, drop_client_role, export_catalog
from support.duckdb_client import ClientView, attached, libpq, stock
from support.flush_lake import FlushLake
from support.lake import add_file, make_catalog, make_table, rows_of
from support.sql_lake import SqlLake

AS_IN_DUCKDB = {"character varying": "VARCHAR", "timestamp with time zone": "TIMESTAMP WITH TIME ZONE"}


def test_the_views_have_the_tables_and_columns_of_stock_ducklake(connection: Connection, tmp_path: Path) -> None:
    with attached(f"{tmp_path}/stock.ducklake", f"DATA_PATH '{tmp_path}/data'"):
        pass
    with duckdb.connect(f"{tmp_path}/stock.ducklake") as duck:
        stocks = duck.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal ORDER BY ALL"
        ).fetchall()
        version = duck.execute("SELECT value FROM ducklake_metadata WHERE key = 'version'").fetchall()
    ours = rows_of(
        connection,
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = 'ducklake_client'",
    )
    assert sorted((table, column, AS_IN_DUCKDB.get(kind, kind.upper())) for table, column, kind in ours) == stocks
    assert rows_of(connection, "SELECT value FROM ducklake_client.ducklake_metadata WHERE key = 'version'") == version


def names_in(duck: duckdb.DuckDBPyConnection) -> list[str]:
    return [row[0] for row in duck.execute("SELECT table_name FROM ducklake_table_info('lake') ORDER BY 1").fetchall()]


def test_an_unknown_missing_or_dropped_catalog_is_empty(lake: SqlLake) -> None:
    lake.run("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
    for name in ("nobody", None, "Main", ""):
        with stock(lake.dsn, name) as duck:
            assert names_in(duck) == []
            duck.execute("USE lake")
    with stock(lake.dsn) as duck:
        assert names_in(duck) == ["t"]
    with connect(lake.dsn) as connection:
        drop_catalog(connection, find_catalog(connection, "main"))
    with stock(lake.dsn) as duck:
        assert names_in(duck) == []


def test_a_catalog_whose_own_snapshots_are_expired_can_be_read(lake: SqlLake) -> None:
    lake.run("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
    with connect(lake.dsn) as connection:
        connection.execute("SELECT lakefork.create_catalog('other', '/lake/other')")
        connection.execute("DELETE FROM ducklake_snapshot WHERE snapshot_id < lakefork.newest_snapshot()")
    with stock(lake.dsn) as duck:
        assert names_in(duck) == ["t"] and duck.execute("FROM lake.app.t").fetchall() == []


def test_names_of_credentials_are_not_part_of_paths(connection: Connection) -> None:
    table = make_table(connection, make_catalog(connection, "main", "s3://bucket/main"))
    add_file(connection, table)
    connection.execute("UPDATE ducklake_data_file SET path = 's3://VAULT@other/b.parquet', path_is_relative = false")
    connection.execute("UPDATE ducklake_table SET path = 's3://VAULT@other/t', path_is_relative = false")
    connection.execute("UPDATE ducklake_file_column_stats SET max_value = '0' WHERE column_id = 2")
    connection.execute(
        "INSERT INTO lakefork.clean_snapshot SELECT catalog_id, table_id, file_order FROM ducklake_data_file"
    )
    connection.execute("SET lakefork.catalog = 'main'")
    shown = rows_of(connection, "SELECT path FROM ducklake_client.ducklake_data_file")
    shown += rows_of(connection, "SELECT path FROM ducklake_client.ducklake_table")
    shown += rows_of(connection, "SELECT value FROM ducklake_client.ducklake_metadata WHERE key = 'data_path'")
    assert shown == [("s3://other/b.parquet",), ("s3://other/t/",), ("s3://bucket/main/",)]


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    with connect(dsn) as connection:
        yield "client_of_main"
        if rows_of(connection, "SELECT 1 FROM pg_roles WHERE rolname = 'client_of_main'"):
            drop_client_role(connection, "client_of_main")


def test_a_role_reads_the_views_of_its_catalog_and_nothing_else(seen: ClientView, role: str) -> None:
    lake = seen.flush_lake
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a')")
    lake.flush()
    seen.fork("fork")
    dsn = lake.lake.dsn
    with connect(dsn) as connection:
        password = create_client_role(connection, role, "main")
        with pytest.raises(AlreadyExistsError, match="already"):
            create_client_role(connection, role, None)
    who = {"user": role, "password": password}
    with stock(dsn, "main", **who) as duck:
        assert duck.execute("SELECT id, v FROM lake.app.ours").fetchall() == [(1, "a")]
    for other in ("fork", None, "nobody"):
        with stock(dsn, other, **who) as duck:
            assert names_in(duck) == []
    with psycopg.connect(libpq(dsn, **who), autocommit=True) as client:
        client.execute("SET lakefork.catalog = 'fork'; SET default_transaction_read_only = off")
        assert client.execute("SELECT count(*) FROM ducklake_client.ducklake_data_file").fetchall() == [(0,)]
        for statement in (
            "SELECT * FROM public.ducklake_catalog",
            "SELECT * FROM lakefork.client_catalog",
            "SELECT * FROM lakefork.client_role",
            "SELECT lakefork.data_path(1)",
            "SELECT * FROM system.catalogs",
            "SELECT * FROM public.ducklake_fork_catalog('main', 'stolen')",
            "CALL public.ducklake_fork_catalog('main', 'stolen')",
            "UPDATE ducklake_client.ducklake_table SET table_name = 'x'",
            "DELETE FROM ducklake_client.ducklake_tag",
            "CREATE TABLE ducklake_client.t (id int)",
            "CREATE TABLE public.t (id int)",
            "SET SESSION AUTHORIZATION lakefork",
            "SET ROLE lakefork",
            *(
                f"SELECT * FROM {name}"
                for (name,) in lake.sql(
                    "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
                    "WHERE schemaname IN ('public', 'lakefork', 'hot')"
                )
            ),
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(statement)
        # A condition of the reader's own is not asked of other catalogs' rows, even where one can make functions.
        with connect(dsn) as connection:
            connection.execute(f"GRANT TEMPORARY ON DATABASE {dsn.rpartition('/')[2]} TO {role}")
        client.execute(
            "CREATE FUNCTION pg_temp.peek(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 "
            "AS $$ BEGIN RAISE EXCEPTION 'saw %', $1; END $$"
        )
        assert client.execute("SELECT * FROM ducklake_client.ducklake_view WHERE pg_temp.peek(sql)").fetchall() == []
        assert client.execute("SELECT * FROM ducklake_client.ducklake_table WHERE pg_temp.peek(path)").fetchall() == []


def test_a_role_for_any_catalog_and_one_that_was_given_the_views_by_hand(lake: SqlLake, role: str) -> None:
    lake.run("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY)")
    with connect(lake.dsn) as connection:
        password = create_client_role(connection, role, None)
        with stock(lake.dsn, user=role, password=password) as duck:
            assert names_in(duck) == ["t"]
        connection.execute("DELETE FROM lakefork.client_role")
        with stock(lake.dsn, user=role, password=password) as duck:
            assert names_in(duck) == []
        connection.execute("INSERT INTO lakefork.client_role VALUES (%s, NULL)", (role,))
        drop_client_role(connection, role)
        with pytest.raises(NotFoundError, match=r"client role .* does not exist"):
            drop_client_role(connection, role)
        with pytest.raises(NotFoundError, match="catalog 'nix' does not exist"):
            create_client_role(connection, role, "nix")
        for bad in ("", "A", "x" * 64, 'x"; DROP TABLE t', "pg_x"):
            with pytest.raises(InvalidInputError, match="is invalid: use up to 63"):
                create_client_role(connection, bad, None)


def test_a_role_whose_catalog_is_forgotten_can_be_dropped(lake: SqlLake, role: str) -> None:
    with connect(lake.dsn) as connection:
        connection.execute("SELECT lakefork.create_catalog('other', '/lake/other')")
        password = create_client_role(connection, role, "other")
        other = find_catalog(connection, "other").catalog_id
        drop_catalog(connection, find_catalog(connection, "other"))
        connection.execute("SELECT lakefork.forget_catalogs(ARRAY[%s::bigint])", (other,))
        with stock(lake.dsn, user=role, password=password) as duck:
            assert names_in(duck) == []
        with pytest.raises(AlreadyExistsError, match=f"drop it first .`lakefork client-role {role} --drop`"):
            create_client_role(connection, role, "main")
        drop_client_role(connection, role)
        connection.execute("CREATE ROLE somebody_elses")
        with pytest.raises(NotFoundError, match=r"client role .* does not exist"):
            drop_client_role(connection, "somebody_elses")
        with pytest.raises(AlreadyExistsError, match=r"role 'somebody_elses' already exists$"):
            create_client_role(connection, "somebody_elses", "main")
        connection.execute("DROP ROLE somebody_elses")


def test_an_export_is_attached_without_postgres(seen: ClientView, tmp_path: Path) -> None:
    lake: FlushLake = seen.flush_lake
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')")
    lake.lake.run("INSERT INTO app.mine VALUES (1, 'a')", user="ada")
    lake.flush()
    fork = seen.fork("fork")
    file = tmp_path / "fork.ducklake"
    lines: list[str] = []
    copied = export_catalog(lake.lake.dsn, "fork", file, lines.append)
    assert (
        lines[-1] == f"[####################] 100% {len(copied)} of {len(copied)} tables, {sum(copied.values()):,} rows"
    )
    assert copied["ducklake_data_file"] == 2
    with attached(str(file), "READ_ONLY") as duck:
        assert duck.execute("FROM lake.app.ours ORDER BY ALL").fetchall() == fork.ours("app.ours")
        assert duck.execute("FROM lake.app.mine ORDER BY ALL").fetchall() == fork.ours("app.mine")
        birth = fork.own_snapshots()[0]
        assert duck.execute(f"SELECT count(*) FROM lake.app.ours AT (VERSION => {birth})").fetchall() == [(2,)]
    with pytest.raises(InvalidInputError, match="already exists"):
        export_catalog(lake.lake.dsn, "fork", file)
    with pytest.raises(NotFoundError, match="catalog 'nix' does not exist"):
        export_catalog(lake.lake.dsn, "nix", tmp_path / "nix.ducklake")
    assert not (tmp_path / "nix.ducklake").exists()
