"""What waits for a flush, and which files went, as tables to select from."""

from lakefork.catalog.connection import connect
from lakefork.errors import PermissionDeniedError
from lakefork.sql.session import Role
from support.sql_lake import SqlLake, refuse


def test_users_see_what_waits_of_their_own_rows_and_admins_all(lake: SqlLake, user_table: str, table: str) -> None:
    lake.run(f"INSERT INTO {user_table} (v) VALUES ('a'), ('b')", user="ada")
    lake.run(f"INSERT INTO {user_table} (v) VALUES ('c')", user="bob")
    lake.run(f"INSERT INTO {table} (id) VALUES (1)")
    namespace = table.split(".")[0]
    query = f"SELECT table_name, user_id, versions FROM system.waiting WHERE namespace = '{namespace}' ORDER BY 1, 2"
    assert lake.rows(query, user="ada") == [("mine", "ada", 2)]
    everything = [("mine", "ada", 2), ("mine", "bob", 1), ("t", None, 1)]
    assert lake.rows(query) == everything
    assert lake.rows(query, user="sam", role=Role.SERVICE) == everything


def test_the_ledger_of_deletions_is_for_admins_and_shows_their_own_catalog_only(lake: SqlLake) -> None:
    with connect(lake.dsn) as connection:
        for catalog in (lake.catalog.name, "another", None):
            connection.execute(
                "INSERT INTO lakefork.deletion (run_id, job_id, path, size_bytes, last_catalog, reason, decided_at) "
                "VALUES ('r', 'j', %s, 1, %s, 'expired', now())",
                (f"/data/{catalog}", catalog),
            )
    assert lake.rows("SELECT path, last_catalog FROM system.deletions") == [
        (f"/data/{lake.catalog.name}", lake.catalog.name)
    ]
    for role in (Role.USER, Role.SERVICE):
        refuse(lake, PermissionDeniedError, "admin", "SELECT * FROM system.deletions", user="ada", role=role)
