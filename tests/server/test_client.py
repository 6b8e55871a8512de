"""lakefork.connect: what applications in Python use."""

import threading

import pyarrow as pa
import pytest

import lakefork
from lakefork.client import ServerError
from lakefork.errors import (
    ConflictError,
    InvalidInputError,
    LakeforkError,
    LimitError,
    NotFoundError,
    PermissionDeniedError,
)
from support.api_server import ApiServer
from support.sql_lake import SqlLake


def test_statements_rows_and_arrow(api: ApiServer, alice: str, ns: str) -> None:
    with lakefork.connect(api.url, alice, namespace=ns) as client:
        insert, select = client.execute("INSERT INTO mine VALUES (?, ?); SELECT id, v FROM mine", [1, "x"])
        assert (insert.affected_rows, insert.rows) == (1, [])
        assert (select.columns, select.rows, select.truncated) == (["id", "v"], [[1, "x"]], False)
        assert client.rows("SELECT v FROM mine WHERE id = ?", [1]) == [["x"]]
        assert client.arrow("SELECT id FROM mine").schema == pa.schema({"id": pa.int64()})
        key = lakefork.new_key()
        for _ in range(2):
            assert client.execute("INSERT INTO mine VALUES (2, 'y')", idempotency_key=key)[0].affected_rows == 1
        assert client.rows("SELECT count(*) FROM mine") == [[2]]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELEC 1", InvalidInputError), ("SELECT * FROM no.t", NotFoundError), ("CREATE NAMESPACE x", PermissionDeniedError),
        ("INSERT INTO {ns}.mine VALUES (1, 'a'), (1, 'b')", LakeforkError), ("SELECT 1 +", InvalidInputError),
    ],
)  # fmt: skip
def test_errors_are_exceptions(api: ApiServer, alice: str, ns: str, sql: str, kind: type[LakeforkError]) -> None:
    with lakefork.connect(api.url, alice) as client, pytest.raises(kind):
        client.execute(sql.format(ns=ns))
    with (
        lakefork.connect(api.url, alice) as client,
        pytest.raises(kind if sql.startswith("SELE") else InvalidInputError),
    ):
        client.arrow(sql.format(ns=ns))


def test_what_is_about_the_server(api: ApiServer, alice: str, ns: str) -> None:
    with lakefork.connect(api.url, "x") as client, pytest.raises(ServerError) as refused:
        client.rows("SELECT 1")
    assert (refused.value.code, refused.value.status, refused.value.retryable) == ("unauthenticated", 401, False)
    with lakefork.connect("http://127.0.0.1:9", alice) as client, pytest.raises(ServerError, match="did not answer"):
        client.rows("SELECT 1")
    with lakefork.connect(api.url, alice) as client:
        with pytest.raises(LimitError, match="more rows"):
            client.arrow("SELECT i FROM range(200001) r(i)")
        with pytest.raises(InvalidInputError, match="Could not convert"):
            client.arrow(
                "SELECT repeat('x', 100) AS x, CASE WHEN i < 190000 THEN 1 ELSE CAST('x' || i AS INTEGER) END AS v FROM range(191000) r(i)"
            )
        with pytest.raises(ConflictError):
            client.execute(f"INSERT INTO {ns}.mine VALUES (1, 'a'); INSERT INTO {ns}.mine VALUES (1, 'a')")


def test_threads_share_a_client(api: ApiServer, lake: SqlLake, ns: str) -> None:
    with api.client("crowd") as client:
        threads = [
            threading.Thread(target=client.execute, args=(f"INSERT INTO {ns}.mine VALUES (?, 'x')", [place]))
            for place in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.rows(f"SELECT count(*) FROM {ns}.mine") == [[4]]
