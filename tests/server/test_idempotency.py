"""A request with an Idempotency-Key is done once, however often and however concurrently it is sent."""

import threading
import time
import uuid
from typing import Any

import httpx
import psycopg
import pytest

from lakefork.errors import LakeforkError
from lakefork.sql.engine import Engine
from lakefork.sql.results import Affected, Collected
from lakefork.sql.write.receipts import Receipt, Receipts
from support.api_server import ApiServer
from support.sql_lake import SqlLake, new_name


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def send(api: ApiServer, token: str, key: str, sql: str, *params: Any) -> httpx.Response:
    return api.post(sql, token, params=list(params), headers={"Idempotency-Key": key})


def results(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_a_repeated_write_answers_as_the_first_time(api: ApiServer, alice: str, ns: str, key: str) -> None:
    text = f"INSERT INTO {ns}.mine (v) VALUES (?), ('b'); UPDATE {ns}.mine SET v = v || '!'; DELETE FROM {ns}.mine WHERE v = 'b!'"
    first = results(send(api, alice, key, text, "a"))
    assert [one["affected_rows"] for one in first] == [2, 2, 1]
    for _ in range(3):
        assert results(send(api, alice, key, text, "a")) == first
    assert api.post(f"SELECT v FROM {ns}.mine", alice).json()["results"][0]["rows"] == [["a!"]]


def test_a_key_is_for_one_request_of_one_user(api: ApiServer, alice: str, ns: str, key: str) -> None:
    text = f"INSERT INTO {ns}.mine (v) VALUES (?)"
    assert send(api, alice, key, text, "a").status_code == 200
    other = send(api, alice, key, text, "b")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    assert send(api, api.token("bob"), key, text, "b").status_code == 200


def test_attempts_at_the_same_time_are_one(api: ApiServer, alice: str, ns: str, key: str) -> None:
    """With keys of the rows' own, of which only one can be new, and with generated ones."""
    text = f"INSERT INTO {ns}.mine VALUES (1, 'x'); INSERT INTO {ns}.mine (v) VALUES ('y')"
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(send(api, alice, key, text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [answer for answer in answers if answer.status_code != 429]
    assert [[one["affected_rows"] for one in results(answer)] for answer in done] == [[1, 1]] * len(done)
    assert api.post(f"SELECT count(*) FROM {ns}.mine", alice).json()["results"][0]["rows"] == [[2]]


def test_what_failed_is_tried_again_and_what_was_done_is_not(
    api: ApiServer, alice: str, lake: SqlLake, ns: str, key: str
) -> None:
    late = new_name("late")
    text = f"INSERT INTO {ns}.mine (v) VALUES ('once'); INSERT INTO {ns}.{late} (v) VALUES ('then')"
    failed = send(api, alice, key, text)
    assert (failed.status_code, len(failed.json()["results"])) == (400, 1)
    lake.run(f"CREATE USER TABLE {ns}.{late} (id BIGINT PRIMARY KEY, v STRING)")
    assert [one["affected_rows"] for one in results(send(api, alice, key, text))] == [1, 1]
    counts = api.post(f"SELECT count(*) FROM {ns}.mine; SELECT count(*) FROM {ns}.{late}", alice).json()["results"]
    assert [one["rows"] for one in counts] == [[[1]], [[1]]]


def test_definitions_and_changes_of_no_row_are_remembered_too(api: ApiServer, admin: str, ns: str, key: str) -> None:
    name = new_name("t")
    text = (
        f"CREATE SHARED TABLE {ns}.{name} (id BIGINT PRIMARY KEY); UPDATE {ns}.mine SET v = 'x' WHERE id = 9; SELECT 1"
    )
    first = results(send(api, admin, key, text))
    assert results(send(api, admin, key, text)) == first
    assert first[0]["status"] == "success"
    assert first[1]["affected_rows"] == 0


class _LostAfterCommit(Receipts):
    """As if the connection broke right after the change was saved."""

    def _complete(self, place: int, result: Any) -> None:
        raise LakeforkError("lost")


def test_a_change_whose_answer_was_lost_is_not_made_again(
    lake: SqlLake, ns: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakefork.sql.engine.Receipts", _LostAfterCommit)
    text = f"INSERT INTO {ns}.mine (v) VALUES ('x')"
    for _ in range(2):
        assert run(lake.engine, lake, text, key) == [Affected(text, 1)]
    assert lake.rows(f"SELECT count(*) FROM {ns}.mine", user="alice") == [(1,)]


def run(engine: Engine, lake: SqlLake, text: str, key: str) -> list[Any]:
    sink = Collected()
    receipt = Receipt(lake.catalog.catalog_id, "alice", key, "digest")
    error = engine.run_into(sink, lake.session("alice"), text, receipt=receipt)
    assert error is None, error
    return sink.results


def test_a_receipt_is_part_of_the_transaction_of_its_change(lake: SqlLake, ns: str, key: str) -> None:
    """While the change is not committed, there is no receipt; both appear together."""
    lake.run(f"INSERT INTO {ns}.mine VALUES (1, 'a')", user="alice")
    hot = lake.find(f"{ns}.mine").hot[0].qualified
    with psycopg.connect(lake.dsn) as blocker:
        blocker.execute(f"LOCK TABLE {hot} IN EXCLUSIVE MODE")
        writing = threading.Thread(target=run, args=(lake.engine, lake, f"UPDATE {ns}.mine SET v = 'b'", key))
        writing.start()
        time.sleep(0.5)
        assert receipts(lake, key) == []
        blocker.rollback()
        writing.join()
    assert receipts(lake, key) == [(0, 1)]


def receipts(lake: SqlLake, key: str) -> list[Any]:
    with psycopg.connect(lake.dsn) as connection:
        return connection.execute(
            "SELECT statement, affected_rows FROM lakefork.api_receipt WHERE request_key = %s", (key,)
        ).fetchall()
