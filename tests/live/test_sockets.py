"""The socket: who may open it, what a subscription may be, and how it ends."""

import json
import time
import uuid
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, NotFoundError
from live.conftest import Connect
from support.api_server import ApiServer
from support.live_client import LiveClient
from support.sql_lake import SqlLake, refuse
from support.waiting import wait_until

ADA = {"user": "ada"}


def queries(lake: SqlLake, **who: Any) -> list[tuple[Any, ...]]:
    return lake.rows("SELECT id, user_id, query, subscription_id FROM system.live_queries", **who)


def test_a_token_may_come_in_the_first_message(api: ApiServer) -> None:
    with LiveClient(api, None) as client:
        client.send(type="authenticate", token=api.token("ada"))
        assert client.next() == {"type": "auth_success", "user_id": "ada", "role": "user"}
        client.send(type="ping")
        assert client.next() == {"type": "pong"}


@pytest.mark.parametrize("first", [{"type": "authenticate", "token": "x.y.z"}, {"type": "ping"}, {}])
def test_nobody_comes_in_without_a_good_token(api: ApiServer, first: dict[str, Any]) -> None:
    with LiveClient(api, None) as client:
        client.send(**first)
        assert client.next()["code"] == "unauthenticated"
        assert client.closed() == 4401


def test_a_token_must_come_soon(api: ApiServer) -> None:
    with LiveClient(api, None) as client:
        assert client.closed() == 4408


def test_a_socket_without_subscriptions_is_closed_when_it_is_idle(client: Connect) -> None:
    assert client().closed() == 4408


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT a.id FROM {ns}.t a JOIN {ns}.t b ON a.id = b.id", "JOIN is not supported"),
        ("SELECT count(*) FROM {ns}.t", "aggregates"),
        ("SELECT id FROM {ns}.t ORDER BY id LIMIT 3", "use the option last_rows"),
        ("SELECT id + 1 FROM {ns}.t", "id \\+ 1 is not a column"),
        ("SELECT id FROM {ns}.t WHERE n = (SELECT max(n) FROM {ns}.t)", "subqueries"),
        ("SELECT id FROM {ns}.t WHERE n > random()", "another value at another time"),
        ("SELECT id FROM {ns}.t WHERE _deleted", "in WHERE only _seq"),
        ("SELECT nothing FROM {ns}.t", "has no column nothing"),
        ("SELECT _user_id FROM {ns}.t", "needs role service"),
        ("SELECT id FROM {ns}.none", "does not exist"),
        ("SELECT id FROM {ns}.t AT (VERSION => 1)", "about the past"),
        ("SELECT id, n AS id FROM {ns}.t", "selected twice"),
        ("INSERT INTO {ns}.t (id) VALUES (1)", "a live query is SELECT"),
        ("SELEC 1", "SELEC is not supported"),
        ("SELECT * FROM system.users", "does not exist"),
    ],
)
def test_what_is_not_supported_is_said(client: Connect, ns: str, sql: str, said: str) -> None:
    import re

    answer = client().subscribe("s", sql.format(ns=ns))
    assert answer["type"] == "error"
    assert re.search(said, answer["message"]), answer["message"]


@pytest.mark.parametrize(
    "message", ["[]", "{", '{"type":"what"}', '{"type":"subscribe"}', '{"type":"unsubscribe","id":"none"}',
                '{"subscriptions":[{"id":"","sql":"SELECT 1"}]}', '{"subscriptions":[{"id":"a","sql":"SELECT 1","options":{"last":1}}]}',
                '{"subscriptions":[{"id":"a","sql":"SELECT 1","options":{"resume":"1.2.3"}}]}', '{"subscriptions":[7]}']
)  # fmt: skip
def test_a_malformed_message_is_an_error_and_nothing_more(client: Connect, message: str) -> None:
    one = client()
    one.socket.send(message)
    assert one.next()["type"] == "error"
    one.send(type="ping")
    assert one.next() == {"type": "pong"}


def test_one_message_cannot_begin_more_subscriptions_than_a_socket_may_have(client: Connect) -> None:
    one = client()
    one.send(subscriptions=[7] * 1_010)
    said = [one.next()["message"] for _ in range(1_010)]
    assert sum("as many subscriptions as it may have" in message for message in said) == 10
    assert sum("needs an id" in message for message in said) == 1_000


def test_many_subscriptions_on_one_socket_are_independent(lake: SqlLake, ns: str, client: Connect) -> None:
    one = client()
    for n in range(5):
        one.subscribe(f"s{n}", f"SELECT id, n FROM {ns}.t WHERE n = {n}")
    one.send(type="unsubscribe", id="s3")
    assert one.next() == {"type": "unsubscribed", "subscription_id": "s3"}
    lake.run(f"INSERT INTO {ns}.t (id, n) VALUES (1, 1), (2, 3), (3, 4)", **ADA)
    told = [one.next() for _ in range(2)]
    assert [(message["subscription_id"], message["new_values"]["id"]) for message in told] == [("s1", 1), ("s4", 3)]
    assert one.quiet() == []


def test_the_short_form_has_no_type(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (1), (2), (3)", **ADA)
    one = client()
    one.send(subscriptions=[{"id": "m", "query": f"SELECT id FROM {ns}.t", "options": {"last_rows": 2}}])
    assert one.next()["rows"] == [{"id": 2}, {"id": 3}]


def test_initial_data_comes_in_pages(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id) SELECT range FROM range(2500)", **ADA)
    one = client()
    one.subscribe("s", f"SELECT id FROM {ns}.t")
    pages = one.told["s"]
    assert [(page["page"], page["row_count"], page["last"], "resume" in page) for page in pages] == [
        (0, 1000, False, False), (1, 1000, False, False), (2, 500, True, True),
    ]  # fmt: skip
    assert sorted(one.copies["s"]) == list(range(2500))


def test_a_bound_on_seq_is_about_the_initial_data(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (1), (2)", **ADA)
    ((seq,),) = lake.rows(f"SELECT max(_seq) FROM {ns}.t", **ADA)
    ((updated,),) = lake.rows(f"SELECT max(_updated) FROM {ns}.t", **ADA)
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (3); DELETE FROM {ns}.t WHERE id = 1", **ADA)
    one = client()
    answer = one.subscribe("s", f"SELECT id, _deleted FROM {ns}.t WHERE _seq > {seq}")
    assert answer["rows"] == [{"id": 3, "_deleted": False}, {"id": 1, "_deleted": True}]
    since = one.subscribe("u", f"SELECT id FROM {ns}.t WHERE _updated > '{updated.isoformat()}' AND id > 1")
    assert since["rows"][-1] == {"id": 3}
    lake.run(f"UPDATE {ns}.t SET n = 1 WHERE id = 2", **ADA)
    assert one.change("s")["new_values"]["id"] == 2


def test_live_queries_are_listed_and_killed(lake: SqlLake, ns: str, client: Connect) -> None:
    sql = f"SELECT id FROM {ns}.t"
    ada, bob = client("ada"), client("bob")
    ada.subscribe("a", sql)
    bob.subscribe("b", sql)
    ((ada_id, *rest),) = [row for row in queries(lake, **ADA) if row[2] == sql]
    assert rest == ["ada", sql, "a"]
    assert [row[1] for row in queries(lake) if row[2] == sql] == ["ada", "bob"]
    refuse(lake, NotFoundError, "does not exist", f"KILL LIVE QUERY '{ada_id}'", user="bob")
    refuse(lake, NotFoundError, "does not exist", f"KILL LIVE QUERY '{uuid.uuid4()}'")
    lake.run(f"KILL LIVE QUERY '{ada_id}'", **ADA)
    ended = ada.next()
    assert (ended["type"], ended["subscription_id"], ended["reason"]) == ("ended", "a", "killed by ada")
    bob.close()
    wait_until(lambda: [row for row in queries(lake) if row[2] == sql] == [])


def test_what_was_sent_is_counted(lake: SqlLake, ns: str, client: Connect) -> None:
    one = client()
    one.subscribe("s", f"SELECT * FROM {ns}.t")
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (1), (2)", **ADA)
    one.change(), one.change()
    size = sum(len(json.dumps(message, separators=(",", ":"))) for message in one.told["s"])

    def counted() -> bool:
        found = lake.rows(
            f"SELECT messages, bandwidth FROM system.live_queries WHERE table_name = 't' AND namespace = '{ns}'"
        )
        return found == [(3, size)]

    wait_until(counted)


def test_scenario_26_a_table_in_use_is_not_dropped(lake: SqlLake, ns: str, client: Connect) -> None:
    one = client()
    one.subscribe("s", f"SELECT id, v FROM {ns}.t")
    one.subscribe("other", f"SELECT id FROM {ns}.t")
    ids = [row[0] for row in queries(lake, **ADA) if f"{ns}.t" in row[2]]
    message = refuse(lake, ConflictError, "is used by 2 live queries", f"DROP TABLE {ns}.t")
    assert all(live_id in message for live_id in ids)
    refuse(lake, ConflictError, "column v of .* is used by 1 live query", f"ALTER TABLE {ns}.t DROP COLUMN v")
    lake.run(f"ALTER TABLE {ns}.t DROP COLUMN n")
    lake.run(f"ALTER TABLE {ns}.t DROP COLUMN v FORCE")
    ended = one.until(lambda message: message["type"] == "ended")
    assert (ended["subscription_id"], ended["reason"]) == ("s", f"column v of {ns}.t was dropped")
    lake.run(f"DROP TABLE {ns}.t FORCE")
    ended = one.until(lambda message: message["type"] == "ended")
    assert (ended["subscription_id"], "dropped" in ended["reason"] or "exist" in ended["reason"]) == ("other", True)


def test_scenario_26_altering_loses_and_doubles_nothing(lake: SqlLake, ns: str, client: Connect) -> None:
    one = client()
    one.subscribe("all", f"SELECT * FROM {ns}.t")
    one.subscribe("some", f"SELECT id, v FROM {ns}.t WHERE v <> 'hidden'")
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'before')", **ADA)
    one.change("some")
    lake.run(f"ALTER TABLE {ns}.t ADD COLUMN more INT DEFAULT 5, RENAME COLUMN v TO word")
    lake.run(f"INSERT INTO {ns}.t (id, word) VALUES (2, 'after'), (3, 'hidden')", **ADA)
    lake.run(f"UPDATE {ns}.t SET word = 'later' WHERE id = 1", **ADA)
    one.quiet(0.5)
    found = {name: [m for m in one.told[name] if m["type"] == "change"] for name in ("all", "some")}
    assert [m["new_values"]["id"] for m in found["all"]] == [1, 2, 3, 1]
    assert found["all"][-1]["new_values"] | {"_seq": 0} == {
        "id": 1, "word": "later", "n": None, "more": 5, "_seq": 0, "_deleted": False,
    }  # fmt: skip
    assert [m["new_values"] for m in found["some"]] == [
        {"id": 1, "v": "before"}, {"id": 2, "word": "after"}, {"id": 1, "word": "later"},
    ]  # fmt: skip
    assert [m["change_type"] for m in found["some"]] == ["INSERT", "INSERT", "UPDATE"]


def _shared_table(lake: SqlLake, ns: str, user: str) -> None:
    lake.run(f"CREATE SHARED TABLE {ns}.rooms (id BIGINT PRIMARY KEY, owner STRING)")
    lake.run(
        "INSERT INTO system.users (user_id, permissions) VALUES (?, ARRAY[?])",
        user,
        f"{ns}.rooms.owner = CURRENT_USER()",
    )


def test_scenario_26_rows_of_shared_tables_are_those_of_the_rules(lake: SqlLake, ns: str, client: Connect) -> None:
    user = f"u_{ns}"
    _shared_table(lake, ns, user)
    one, other = client(user), client("nobody")
    assert "no rule lets user" in other.subscribe("s", f"SELECT id FROM {ns}.rooms")["message"]
    one.subscribe("s", f"SELECT id, owner FROM {ns}.rooms")
    lake.run(f"INSERT INTO {ns}.rooms VALUES (1, '{user}'), (2, 'somebody')")
    lake.run(f"UPDATE {ns}.rooms SET owner = '{user}' WHERE id = 2; UPDATE {ns}.rooms SET owner = 'x' WHERE id = 1")
    told = [one.change() for _ in range(3)]
    assert [(m["change_type"], (m.get("new_values") or m["old_values"])["id"]) for m in told] == [
        ("INSERT", 1), ("INSERT", 2), ("DELETE", 1),
    ]  # fmt: skip
    assert told[2]["old_values"]["owner"] == user
    lake.run("UPDATE system.users SET permissions = ARRAY[?] WHERE user_id = ?", f"{ns}.rooms.id < 2", user)
    assert one.until(lambda m: m["type"] == "initial_data")["rows"] == [{"id": 1, "owner": "x"}]
    lake.run("UPDATE system.users SET permissions = ARRAY[]::VARCHAR[] WHERE user_id = ?", user)
    assert "no rule lets user" in one.until(lambda m: m["type"] == "ended")["reason"]


@pytest.mark.parametrize("how", ["deleted", "revoked"])
def test_scenario_26_who_is_gone_is_told_nothing_more(
    api: ApiServer, lake: SqlLake, ns: str, client: Connect, how: str
) -> None:
    user = f"{how}_{ns}"
    lake.run("INSERT INTO system.users (user_id) VALUES (?)", user)
    one = client(user)
    one.subscribe("s", f"SELECT id FROM {ns}.t")
    if how == "deleted":
        lake.run("DELETE FROM system.users WHERE user_id = ?", user)
    else:
        with connect(api.dsn) as connection:
            connection.execute("UPDATE lakefork.api_token SET revoked_at = now() WHERE user_id = %s", (user,))
    assert one.next()["type"] == "ended"
    assert one.closed() == 4401


def test_sockets_and_subscriptions_are_logged_and_measured(api: ApiServer, ns: str, client: Connect) -> None:
    one = client()
    one.subscribe("s", f"SELECT id FROM {ns}.t")
    one.close()
    wait_until(
        lambda: {"open", "subscribe", "close"} <= {line.get("event") for line in api.log() if line["path"] == "/ws"}
    )
    metrics = api.http.get("/metrics").text
    assert "lakefork_api_subscriptions " in metrics
    assert float(metrics.split("\nlakefork_api_live_messages_total ")[1].split()[0]) > 0


def test_a_client_that_does_not_read_is_bounded_and_then_right_again(lake: SqlLake, ns: str, api: ApiServer) -> None:
    """Scenario 24: far more than sockets and buffers hold; 20 keys, so that merging is enough, or it is told to resync."""
    with LiveClient(api, api.token("ada"), max_queue=1) as slow:
        slow.subscribe("s", f"SELECT id, v FROM {ns}.t")
        lake.run(f"INSERT INTO {ns}.t (id) SELECT range FROM range(20)", **ADA)
        for n in range(150):
            lake.run(f"UPDATE {ns}.t SET v = repeat('x', 2000) || '{n}' WHERE id < 20", **ADA)
        expected = dict(lake.rows(f"SELECT id, v FROM {ns}.t", **ADA))
        deadline = time.monotonic() + 60
        while {key: row["v"] for key, row in slow.copies["s"].items()} != expected and time.monotonic() < deadline:
            slow.next()
        assert {key: row["v"] for key, row in slow.copies["s"].items()} == expected
        assert len(slow.told["s"]) < 150 * 20
        slow.quiet()
        assert {key: row["v"] for key, row in slow.copies["s"].items()} == expected


def test_the_server_says_when_it_stops(make_settings: Any, lake: SqlLake, tmp_path: Any) -> None:
    from support.api_server import running_server

    with running_server(make_settings(), lake.dsn, tmp_path) as server, LiveClient(server, server.token("ada")) as one:
        one.send(type="ping")
        one.next()
        assert server.stop() == 0
        with pytest.raises(ConnectionClosed):
            one.next()
