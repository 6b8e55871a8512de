"""Answers hold exactly what `lakefork sql --format json` prints, small and large."""

import datetime
import json
import math
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.server.json_rows import FEW_ROWS, rows_json
from lakefork.sql.results import Rows, dumps
from support.api_server import ApiServer
from support.sql_lake import SqlLake, new_name
from support.sql_values import VALUES

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_every_type_are_those_of_the_command(api: ApiServer, lake: SqlLake, admin: str, kind: str) -> None:
    ns = new_name("values")
    lake.run(f"CREATE NAMESPACE {ns}; CREATE SHARED TABLE {ns}.t (id BIGINT PRIMARY KEY, v {kind})")
    for place, value in enumerate([*VALUES[kind], None]):
        lake.run(f"INSERT INTO {ns}.t VALUES (?, ?)", place, value)
    text = f"SELECT id, v FROM {ns}.t ORDER BY id"
    expected = json.loads(dumps(lake.run(text)[0].as_json()))
    assert api.post(text, admin).json()["results"] == [expected]
    many = f"SELECT id, v FROM {ns}.t, range(30) ORDER BY id"  # beyond what is converted value by value
    assert api.post(many, admin).json()["results"] == [json.loads(dumps(lake.run(many)[0].as_json()))]


TYPES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1), pa.int32(): st.integers(-(2**31), 2**31 - 1), pa.uint64(): st.integers(0, 2**64 - 1),
    pa.string(): st.text(), pa.bool_(): st.booleans(), pa.float64(): st.floats(), pa.binary(): st.binary(),
    pa.float32(): st.floats(width=32), pa.timestamp("us"): st.datetimes(), pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)) | st.just(datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3), pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_column_at_a_time_gives_the_same_as_a_value_at_a_time(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    pick = data.draw(st.randoms(use_true_random=False))
    columns = []
    for kind in kinds:
        some = data.draw(st.lists(st.none() | TYPES[kind], min_size=1, max_size=6))
        columns.append(pa.array([pick.choice(some) for _ in range(FEW_ROWS + 10)], kind))
    table = pa.Table.from_arrays(columns, names=[f"c{place}" for place in range(len(kinds))])
    expected = json.loads(dumps(Rows("", table).as_json()["rows"]))
    found = json.loads(b"[" + rows_json(table) + b"]")
    assert found == expected
    assert [[type(value) for value in row] for row in found] == [[type(value) for value in row] for row in expected]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1, 1), (2**60, str(2**60)), (-1.5, -1.5), ("x'y", "x'y"), (None, None), (True, True), ([1, 2], [1, 2]),
        ({"a": [1]}, '{"a":[1]}'), ("2020-01-01", "2020-01-01"),
    ],
)  # fmt: skip
def test_parameters(api: ApiServer, alice: str, value: Any, shown: Any) -> None:
    for text in ("SELECT ? AS v", "SELECT $1 AS v"):
        (row,) = api.post(text, alice, params=[value]).json()["results"][0]["rows"]
        assert (json.loads(row[0]) if isinstance(value, dict) else row[0]) == (
            value if isinstance(value, dict) else shown
        )


def test_a_namespace_for_names_without_one(api: ApiServer, alice: str, ns: str) -> None:
    answer = api.post("INSERT INTO mine VALUES (1, 'x'); SELECT v FROM mine", alice, namespace=ns)
    assert answer.json()["results"][1]["rows"] == [["x"]]


def test_a_large_answer_is_streamed_with_its_status_last(api: ApiServer, alice: str) -> None:
    text = "SELECT i, 'row \"' || i AS v FROM range(150000) r(i); SELECT 1"
    with api.http.stream(
        "POST", "/api/sql", json={"sql": text}, headers={"Authorization": f"Bearer {alice}"}
    ) as answer:
        assert "content-length" not in answer.headers
        content = b"".join(answer.iter_raw())
    assert content.endswith(b'"status":"success"}')
    large, small = json.loads(content)["results"]
    assert large["rows"] == [[i, f'row "{i}'] for i in range(150_000)]
    assert large["row_count"] == 150_000
    assert "truncated" not in large
    assert small["rows"] == [[1]]


def test_a_cut_answer_says_so(api: ApiServer, alice: str) -> None:
    """The server's limit is 200,000 rows."""
    exact, more = api.post("SELECT i FROM range(200000) r(i); SELECT i FROM range(200001) r(i)", alice).json()[
        "results"
    ]
    assert "truncated" not in exact
    assert (more["row_count"], len(more["rows"]), more["truncated"]) == (200_000, 200_000, True)
    assert more["rows"][-1] == [199_999]


FAILS_LATE = "SELECT i, repeat('x', 100) AS x, CASE WHEN i < 190000 THEN 1 ELSE CAST('x' || i AS INTEGER) END AS v FROM range(191000) r(i)"


def test_an_answer_that_fails_late_ends_with_the_error(api: ApiServer, alice: str) -> None:
    answer = api.post(f"SELECT 1; {FAILS_LATE}; SELECT 2", alice)
    assert answer.status_code == 200
    found = answer.json()
    assert list(found)[-1] == "status"
    assert found["status"] == "error"
    assert found["error"]["code"] == "invalid_input"
    first, cut = found["results"]
    assert first["rows"] == [[1]]
    assert cut["truncated"] is True
    assert len(cut["rows"]) == cut["row_count"] < 190_000


def test_an_answer_that_fails_early_has_a_status_of_its_own(api: ApiServer, alice: str) -> None:
    answer = api.post("SELECT 1; SELECT CAST('x' || i AS INTEGER) FROM range(10) r(i)", alice)
    assert answer.status_code == 400
    assert [one["rows"] for one in answer.json()["results"]] == [[[1]]]


def test_arrow(api: ApiServer, alice: str) -> None:
    """Any one statement that returns rows, and no other."""
    with api.client("alice") as client:
        found = client.arrow("SELECT i, i::DECIMAL(9, 2) AS d, [i] AS l, NULL::VARCHAR AS s FROM range(100000) r(i)")
        assert found.num_rows == 100_000
        assert found.slice(7, 1).to_pylist() == [{"i": 7, "d": Decimal(7), "l": [7], "s": None}]
        assert client.arrow("SELECT 1 AS a WHERE false").num_rows == 0
        assert "namespace" in client.arrow("SHOW NAMESPACES").column_names
    for text in ("SELECT 1; SELECT 2", "CREATE NAMESPACE x", "", "DELETE FROM a.b"):
        answer = api.post(text, alice, headers=ARROW)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_input")
    answer = api.post("SELECT * FROM no.t", alice, headers=ARROW)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")


def test_arrow_that_is_cut_or_breaks_off_is_not_taken_for_all(api: ApiServer, alice: str) -> None:
    headers = {**ARROW, "Authorization": f"Bearer {alice}"}
    answer = api.http.post("/api/sql", json={"sql": "SELECT i FROM range(200001) r(i)"}, headers=headers)
    with pa.ipc.open_stream(answer.content) as reader:
        about = []
        while len(about) < 1:
            _, metadata = reader.read_next_batch_with_custom_metadata()
            about += [dict(metadata)] if metadata else []
    assert about == [{b"lakefork.truncated": b"true"}]
    with pytest.raises(httpx.RemoteProtocolError):
        api.http.post("/api/sql", json={"sql": FAILS_LATE}, headers=headers)


def test_numbers_beyond_64_bits_in_some_rows_only(api: ApiServer, alice: str) -> None:
    text = "SELECT sum(CASE WHEN i = 70000 THEN 1e30::HUGEINT ELSE i END) AS s FROM range(80000) r(i) GROUP BY i ORDER BY i"
    answer = api.post(text, alice).json()["results"][0]
    assert answer["row_count"] == 80_000
    assert int(answer["rows"][70_000][0]) == int(1e30)


def test_no_text_is_no_statement(api: ApiServer, alice: str) -> None:
    for text in ("", " ; ;", "-- nothing"):
        assert api.post(text, alice).json()["results"] == []


def test_nan_and_infinity_are_texts(api: ApiServer, alice: str) -> None:
    text = "SELECT 'nan'::DOUBLE, 'inf'::DOUBLE, -'inf'::DOUBLE FROM range(100)"
    rows = api.post(text, alice).json()["results"][0]["rows"]
    assert rows == [["NaN", "Infinity", "-Infinity"]] * 100
    assert math.isnan(float(rows[0][0]))
