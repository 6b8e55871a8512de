"""Who sees and changes what, once more through HTTP: the session is that of the token, whatever the text says."""

import pytest

from support.api_server import ApiServer
from support.sql_lake import SqlLake


@pytest.fixture
def table(lake: SqlLake, ns: str) -> str:
    """Rows of alice and bob, and a shared table with one row for each."""
    for user in ("alice", "bob"):
        lake.run(f"INSERT INTO {ns}.mine VALUES (1, '{user}s secret')", user=user)
    lake.run(
        f"CREATE SHARED TABLE {ns}.rows (id BIGINT PRIMARY KEY, owner STRING); "
        f"INSERT INTO {ns}.rows VALUES (1, 'alice'), (2, 'bob'), (3, 'dora')"
    )
    lake.run("DELETE FROM system.users WHERE user_id = 'none'")
    return f"{ns}.mine"


def rows(api: ApiServer, token: str, text: str) -> list[list[object]]:
    answer = api.post(text, token)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"][-1]["rows"])


def test_own_rows_only(api: ApiServer, alice: str, table: str) -> None:
    bob = api.token("bob")
    assert rows(api, alice, f"SELECT v FROM {table}") == [["alices secret"]]
    assert rows(api, bob, f"SELECT v FROM {table} WHERE true OR v = 'alices secret'") == [["bobs secret"]]
    api.post(f"UPDATE {table} SET v = 'changed' WHERE true; DELETE FROM {table} WHERE v = 'alices secret'", bob)
    assert rows(api, alice, f"SELECT v FROM {table}") == [["alices secret"]]
    assert rows(api, bob, f"SELECT v FROM {table}") == [["changed"]]
    assert rows(api, api.token("carol"), f"SELECT v FROM {table}") == []


def test_services_act_for_users_and_that_is_recorded(api: ApiServer, alice: str, lake: SqlLake, table: str) -> None:
    lake.run("INSERT INTO system.users (user_id) VALUES (?)", f"dan_{table}")
    service = api.token("robot", "service")
    text = f"INSERT INTO {table} VALUES (9, 'for dan') AS USER 'dan_{table}'"
    assert api.post(text, alice).status_code == 403
    assert api.post(text, service).status_code == 200
    assert rows(api, api.token(f"dan_{table}"), f"SELECT v FROM {table}") == [["for dan"]]
    assert lake.rows("SELECT actor, role, action FROM system.audit WHERE subject = ?", f"dan_{table}") == [
        ("robot", "service", "INSERT")
    ]
    unknown = api.post(f"INSERT INTO {table} VALUES (10, 'x') AS USER 'nobody at all'", service)
    assert (unknown.status_code, "nobody" in unknown.text.split('"error"')[1]) == (403, False)


def test_shared_tables_follow_the_rules(api: ApiServer, lake: SqlLake, table: str, ns: str) -> None:
    lake.run(
        "INSERT INTO system.users (user_id, permissions) VALUES (?, ?)", f"dora_{ns}", [f"{ns}.rows.owner = 'dora'"]
    )
    dora = api.token(f"dora_{ns}")
    assert rows(api, dora, f"SELECT id FROM {ns}.rows") == [[3]]
    assert api.post(f"SELECT * FROM {ns}.rows", api.token("carol")).status_code == 403
    assert api.post(f"INSERT INTO {ns}.rows VALUES (7, 'alice')", dora).status_code == 403
    assert api.post(f"UPDATE {ns}.rows SET owner = 'alice' WHERE id = 3", dora).status_code == 403


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM '/etc/passwd'", "SELECT getenv('LAKEFORK_DSN')", "COPY (SELECT 1) TO '/tmp/x'",
        "ATTACH '/tmp/x.db'", "INSTALL httpfs", "SET memory_limit = '1TB'", "PRAGMA database_list", "SELECT * FROM pg_catalog.pg_authid",
        "SELECT * FROM lakefork.api_token", "SELECT * FROM duckdb_settings()", "SELECT * FROM system.storage_locations",
    ],
)  # fmt: skip
def test_nothing_else_is_reached(api: ApiServer, alice: str, text: str) -> None:
    answer = api.post(text, alice)
    assert answer.status_code in (400, 403), answer.text
    assert "root:" not in answer.text


def test_who_one_is_cannot_be_said_in_the_request(api: ApiServer, alice: str, table: str) -> None:
    headers = {"X-User": "bob", "X-Forwarded-User": "bob", "Cookie": "user=bob"}
    found = api.post(f"SELECT v, CURRENT_USER() FROM {table}", alice, headers=headers).json()
    assert found["results"][0]["rows"] == [["alices secret", "alice"]]
    for field in ("user", "role", "catalog", "token"):
        body = {"sql": "SELECT 1", field: "bob"}
        answer = api.http.post("/api/sql", json=body, headers={"Authorization": f"Bearer {alice}"})
        assert answer.status_code == 400
