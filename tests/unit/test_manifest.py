"""manifest.json: what is written can be read and trusted; anything else is found out and never an exception."""

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.manifests.format import (
    BrokenManifest,
    ManifestContent,
    RecordedDirectory,
    build_manifest,
    check_manifest,
    read_manifest,
)

DIRECTORY = "/lake/app/t/user_ada"


def column(column_id: int, kind: str, low: str | None, high: str | None, nulls: int = 0) -> list[Any]:
    return [column_id, kind, 9, nulls, low, high]


def batch(number: int, directory: str = DIRECTORY) -> dict[str, Any]:
    return {
        "path": f"{directory}/batch-{number}.parquet", "data_file_id": 100 + number, "schema_version": 3,
        "row_count": 10 + number, "size_bytes": 1000 + number, "min_seq": 2**60 + number, "max_seq": 2**61 + number,
        "columns": {
            "id": column(4, "int64", str(number), str(-(2**63))), "v": column(5, "varchar", "a", "ä🦆"),
            "f": column(6, "float64", "-0.5", "inf"), "b": column(7, "boolean", "0", "1"),
            "n": column(8, "float64", None, None, 2), "d": column(9, "decimal(10,2)", "1.50", "7.00"),
        },
    }  # fmt: skip


RECORDED = RecordedDirectory(DIRECTORY, 7, "ada", 42, [batch(0), batch(3), batch(9, "/parent/app/t/user_ada")])
VALID = json.loads(build_manifest(RECORDED).content)


def kinds(content: bytes | str, recorded: RecordedDirectory = RECORDED) -> list[str]:
    return [difference.kind for difference in check_manifest(read_manifest(content), recorded)]


def test_what_was_written_is_read_and_trusted() -> None:
    manifest = build_manifest(RECORDED)
    found = read_manifest(manifest.content.encode())
    assert isinstance(found, ManifestContent)
    assert check_manifest(found, RECORDED) == []
    assert (found.table_id, found.user_id, found.snapshot_id, found.max_batch) == (7, "ada", 42, 3)
    assert [batch.data_file_id for batch in found.batches] == [100, 103], "the parent's batch is not this directory's"
    bounds = {column_id: (one.min, one.max) for column_id, one in found.batches[0].columns.items()}
    assert bounds == {
        4: (0, -(2**63)), 5: ("a", "ä🦆"), 6: (-0.5, "inf"), 7: (False, True), 8: (None, None), 9: ("1.50", "7.00"),
    }  # fmt: skip


def test_a_directory_without_batches_has_a_manifest_of_its_last_publish() -> None:
    empty = RecordedDirectory(DIRECTORY, 7, None, 50, [])
    manifest = build_manifest(empty)
    assert json.loads(manifest.content)["max_batch"] == -1
    assert kinds(manifest.content, empty) == []
    assert kinds(json.dumps({**VALID, "batches": [], "max_batch": -1}), empty) == ["wrong user", "stale manifest"]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff\xfe", b"null", b"[]", b"7", b'"x"', b"{}", b'{"format": 1}', b'{"format": true}', b"[" * 100_000,
        b"9" * 5000, b"1e999", b"NaN", b'{"format": NaN}', b"\0", b'{"format": 1, "batches": {}}', b'{"format": 1, "batches": [7]}',
        "\ufeff{}", json.dumps(VALID)[:-1], json.dumps(VALID).encode()[: len(json.dumps(VALID)) // 2], json.dumps([VALID]),
        json.dumps({**VALID, "format": 2}), json.dumps({**VALID, "format": "1"}), json.dumps({**VALID, "format": 10**4000}),
        json.dumps({**VALID, "table_id": True}), json.dumps({**VALID, "batches": VALID["batches"] * 2}),
        json.dumps({**VALID, "batches": [{**VALID["batches"][0], "columns": []}]}),
        json.dumps({**VALID, "batches": [{**VALID["batches"][0], "status": "gone"}]}),
    ],
)  # fmt: skip
def test_bad_content_is_broken_and_no_exception(content: bytes | str) -> None:
    assert isinstance(read_manifest(content), BrokenManifest)
    (difference,) = check_manifest(read_manifest(content), RECORDED)
    assert difference.kind == "broken manifest" and len(str(difference)) < 300


def changed(*path: Any, to: Any) -> str:
    document = copy.deepcopy(VALID)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(document)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (changed("table_id", to=8), "wrong table"),
        (changed("user_id", to="bob"), "wrong user"),
        (changed("user_id", to=None), "wrong user"),
        (changed("snapshot_id", to=41), "stale manifest"),
        (changed("snapshot_id", to=10**400), "stale manifest"),
        (changed("max_batch", to=4), "wrong number"),
        (changed("batches", 0, "file", to="batch-1.parquet"), "missing batch"),
        (changed("batches", 1, "data_file_id", to=7), "wrong number"),
        (changed("batches", 1, "row_count", to=7), "wrong row count"),
        (changed("batches", 1, "size_bytes", to=-1), "wrong size"),
        (changed("batches", 1, "status", to="archived"), "wrong status"),
        (changed("batches", 1, "min_seq", to=None), "wrong statistics"),
        (changed("batches", 1, "columns", to={}), "wrong statistics"),
        (changed("batches", 1, "columns", "id", "min", to=4), "wrong statistics"),
        (changed("batches", 1, "columns", "id", "min", to=None), "wrong statistics"),
        (changed("batches", 1, "columns", "b", "min", to=0), "wrong statistics"),
        (changed("batches", 1, "columns", "f", "min", to=math.nan), "wrong statistics"),
        (changed("batches", 1, "columns", "n", "null_count", to=3), "wrong statistics"),
        (changed("batches", to=VALID["batches"][:1]), "missing batch"),
        (changed("batches", to=[*VALID["batches"], {**VALID["batches"][0], "file": "x", "data_file_id": 1}]), "extra batch"),
    ],
)  # fmt: skip
def test_each_difference_has_a_name(content: str, kind: str) -> None:
    assert kind in kinds(content)


def test_altered_columns_do_not_make_a_manifest_wrong() -> None:
    """Renamed, widened from int to decimal or double, added without statistics, dropped."""
    later = copy.deepcopy([batch(0), batch(3)])
    for one in later:
        columns = one["columns"]
        columns["renamed"] = columns.pop("v")
        columns["id"][1] = "decimal(20,0)"
        del columns["b"]
    assert kinds(json.dumps(VALID), RecordedDirectory(DIRECTORY, 7, "ada", 42, later)) == []


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**300, "active", 7]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    document: Any = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(document)))
        if not path:
            document = draw(JSON_VALUES)
            continue
        parent = document
        for step in path[:-1]:
            parent = parent[step]
        match draw(st.sampled_from(["set", "remove", "swap"])):
            case "set":
                parent[path[-1]] = draw(JSON_VALUES)
            case "remove":
                del parent[path[-1]]
            case "swap":
                other = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
                parent[path[-1]], parent[other] = parent[other], parent[path[-1]]
    return document


def harmless(document: Any) -> bool:
    """Whoever goes by it skips no file wrongly: all that was said is still said, of the same files and column ids."""

    def same(one: Any, other: Any) -> bool:
        return one == other and isinstance(one, bool) == isinstance(other, bool)

    def columns(entry: Any) -> dict[int, Any]:
        return {one["column_id"]: one for one in entry["columns"].values()}

    numbers = ("format", "table_id", "user_id", "snapshot_id", "max_batch")
    batches = {entry["file"]: entry for entry in document["batches"]}
    if not all(same(document[name], VALID[name]) for name in numbers) or len(batches) != len(VALID["batches"]):
        return False
    for expected in VALID["batches"]:
        entry = batches[expected["file"]]
        if not all(same(entry[name], value) for name, value in expected.items() if name != "columns"):
            return False
        for column_id, bounds in columns(expected).items():
            if not all(same(columns(entry)[column_id][name], value) for name, value in bounds.items()):
                return False
    return True


@settings(max_examples=1000, deadline=None)
@given(mutated())
def test_any_mutation_is_found_or_harmless(document: Any) -> None:
    if check_manifest(read_manifest(json.dumps(document)), RECORDED) == []:
        assert harmless(document)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_any_damage_to_the_bytes_is_found_or_harmless(data: st.DataObject) -> None:
    content = bytearray(build_manifest(RECORDED).content.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not content:
            break
    if check_manifest(read_manifest(bytes(content)), RECORDED) == []:
        assert harmless(json.loads(content))
