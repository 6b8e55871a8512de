"""Live queries on STREAM tables: events as they are written, to those whose they are."""

from typing import Any

import pytest

from live.conftest import Connect
from support.sql_lake import SqlLake
from support.waiting import wait_until


@pytest.fixture
def stream(lake: SqlLake, ns: str) -> str:
    lake.run(f"CREATE STREAM TABLE {ns}.s (kind STRING, n INT) WITH (retention = '1h', max_buffer = 5)")
    return f"{ns}.s"


def test_the_initial_data_is_the_buffer_and_events_follow(lake: SqlLake, stream: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {stream} VALUES ('typing', 1), ('typing', 2), ('other', 3)", user="ada")
    lake.run(f"INSERT INTO {stream} VALUES ('typing', 9)", user="bob")
    ada, service = client("ada"), client("worker", "service")
    assert [row["n"] for row in ada.subscribe("s", f"SELECT n FROM {stream} WHERE kind = 'typing'")["rows"]] == [1, 2]
    assert ada.subscribe("last", f"SELECT n FROM {stream}", last_rows=1)["rows"] == [{"n": 3}]
    assert len(service.subscribe("s", f"SELECT _user_id, n FROM {stream}")["rows"]) == 4
    lake.run(f"INSERT INTO {stream} VALUES ('typing', 4), ('other', 5)", user="ada")
    lake.run(f"INSERT INTO {stream} VALUES ('typing', 6)", user="bob")
    told = ada.quiet()
    assert [(m["subscription_id"], m["change_type"], m["new_values"]["n"]) for m in told] == [
        ("s", "INSERT", 4), ("last", "INSERT", 4), ("last", "INSERT", 5),
    ] or sorted((m["subscription_id"], m["new_values"]["n"]) for m in told) == [("last", 4), ("last", 5), ("s", 4)]  # fmt: skip
    assert sorted(m["new_values"]["n"] for m in service.quiet()) == [4, 5, 6]


def test_events_that_went_before_they_were_read_are_told_of(lake: SqlLake, stream: str, client: Connect) -> None:
    first = client("ada")
    first.subscribe("s", f"SELECT n FROM {stream}")
    lake.run(f"INSERT INTO {stream} VALUES ('x', 1)", user="ada")
    first.change()
    first.close()
    lake.run(f"INSERT INTO {stream} VALUES ('x', 2)", user="ada")
    again = client("ada")
    again.subscribe("s", f"SELECT n FROM {stream}", resume=first.resume["s"])
    assert again.change()["new_values"] == {"n": 2}
    again.close()
    lake.run(f"INSERT INTO {stream} SELECT 'x', range FROM range(10, 30)", user="ada")
    wait_until(lambda: _stored(lake, stream) == 5)
    late = client("ada")
    answer = late.subscribe("s", f"SELECT n FROM {stream}", resume=first.resume["s"])
    assert (late.told["s"][0]["type"], [row["n"] for row in answer["rows"]]) == ("resync", [25, 26, 27, 28, 29])


def _stored(lake: SqlLake, stream: str) -> Any:
    table_id = lake.find(stream).definition.table_id
    with lake.engine.resources.catalog.connection() as connection:
        row = connection.execute(f"SELECT count(*) AS n FROM stream.t{table_id}").fetchone()
    return row and row["n"]


def test_ephemeral_events_are_kept_for_those_who_listen(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"CREATE STREAM TABLE {ns}.e (n INT) WITH (ephemeral = true)")
    insert = f"INSERT INTO {ns}.e VALUES (?)"
    lake.run(insert, 1, user="ada")
    ada = client("ada")
    assert ada.subscribe("s", f"SELECT n FROM {ns}.e")["rows"] == []
    lake.run(insert, 2, user="ada")
    lake.run(insert, 3, user="bob")
    assert ada.change()["new_values"] == {"n": 2}
    assert lake.rows(f"SELECT n FROM {ns}.e") == [(2,)]
    ada.close()
    live = f"SELECT count(*) FROM system.live_queries WHERE namespace = '{ns}'"
    wait_until(lambda: lake.rows(live) == [(0,)])
    lake.run(insert, 4, user="ada")
    assert lake.rows(f"SELECT n FROM {ns}.e") == [(2,)]
