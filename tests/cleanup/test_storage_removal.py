"""Files are listed, removed, trashed and restored, on disk and on S3; never anything but files."""

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.catalog.connection import Connection, connect
from lakefork.storage import StorageOptions
from lakefork.storage.listing import Span, list_directories, list_tree
from lakefork.storage.paths import normal_path, place, spellings
from lakefork.storage.removal import move_to_trash, remove_empty_directories, remove_many, restore_from_trash

LOCAL = StorageOptions()
NAMES = [
    "a b.parquet",
    "50%.parquet",
    "50%25.parquet",
    "user_%2E/x",
    "größe/Ωμέγα-🦆.parquet",
    "a+b&c=d'e\".x",
    "dir/.hidden",
]
DAY = "2026-05-01"
S3_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_EC2_METADATA_DISABLED": "true"}


def write(root: Path, *names: str) -> list[str]:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return [f"{root}/{name}" for name in names]


def outcomes(done: list[Any]) -> list[str]:
    return [one.outcome for one in done]


@pytest.fixture(params=["with keys", "without keys"])
def bucket(
    s3: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, StorageOptions]]:
    """With the keys of S3 in the environment, and where only pyarrow finds credentials."""
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    if request.param == "without keys":
        for module in ("listing", "removal"):
            monkeypatch.setattr(f"lakefork.storage.{module}.requests_for", lambda *_: None)
    yield client, StorageOptions(s3, "us-east-1")


def put(client: Any, *keys: str) -> list[str]:
    for key in keys:
        client.put_object(Bucket="lake", Key=key, Body=b"12345")
    return [f"s3://lake/{key}" for key in keys]


def keys(client: Any) -> set[str]:
    """Without the markers of directories that pyarrow leaves."""
    found = client.list_objects_v2(Bucket="lake").get("Contents", [])
    return {one["Key"] for one in found if not one["Key"].endswith("/")}


# Listing


def test_a_tree_is_listed_with_any_names(tmp_path: Path) -> None:
    paths = write(tmp_path, *NAMES)
    found = list(list_tree(f"file://{tmp_path}/", LOCAL))
    assert sorted(file.path for file in found) == sorted(paths)
    assert {file.size_bytes for file in found} == {5}
    assert list(list_directories(str(tmp_path / "nowhere"), LOCAL)) == []
    with pytest.raises(FileNotFoundError):
        list(list_tree(str(tmp_path / "nowhere"), LOCAL))


def test_links_are_neither_listed_nor_followed(tmp_path: Path) -> None:
    (inside,) = write(tmp_path / "root", "a/x")
    write(tmp_path / "outside", "y")
    (tmp_path / "root/file_link").symlink_to(tmp_path / "outside/y")
    (tmp_path / "root/a/directory_link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/a/up").symlink_to(tmp_path / "root")
    (tmp_path / "root/broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "root/pipe")
    assert [file.path for file in list_tree(str(tmp_path / "root"), LOCAL)] == [inside]
    assert list(list_directories(str(tmp_path / "root"), LOCAL)) == ["a"]


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.parquet", os.O_CREAT | os.O_WRONLY))
    assert list(list_tree(str(tmp_path), LOCAL)) == []


def test_a_copy_from_a_backup_is_young_although_its_content_is_old(tmp_path: Path) -> None:
    (path,) = write(tmp_path, "x")
    os.utime(path, (0, 0))
    (found,) = list_tree(str(tmp_path), LOCAL)
    assert found.modified.year > 2000


PARTS = ["user_a/1", "user_a-b/2", "user_a0/3", "user_b/4", "file", "z"]


def check_parts(root: str, options: StorageOptions, paths: list[str]) -> None:
    starts = ["", "user_a-b/", "user_a/", "user_b/"]
    parts = [Span(first, until) for first, until in zip(starts, [*starts[1:], ""], strict=True)]
    found = [[file.path for file in list_tree(root, options, span=part)] for part in parts]
    assert sorted(path for part in found for path in part) == sorted(paths)
    assert f"{root}/user_b/4" in found[-1]
    skipped = {file.path for file in list_tree(root, options, skip={f"{root}/user_a"})}
    assert skipped == set(paths) - {f"{root}/user_a/1"}
    assert sorted(list_directories(root, options)) == ["user_a", "user_a-b", "user_a0", "user_b"]


def test_parts_of_a_directory_are_all_of_it(tmp_path: Path) -> None:
    check_parts(str(tmp_path), LOCAL, write(tmp_path, *PARTS))


def test_parts_of_a_directory_on_s3_are_all_of_it(bucket: tuple[Any, StorageOptions]) -> None:
    client, options = bucket
    put(client, "rootx/other", "root")
    check_parts("s3://lake/root", options, put(client, *(f"root/{name}" for name in PARTS)))


def test_s3_is_listed_with_any_names_that_have_one_path(bucket: tuple[Any, StorageOptions]) -> None:
    client, options = bucket
    paths = put(client, *(f"root/{name}" for name in NAMES))
    if list_tree.__globals__["requests_for"]("s3://lake", options):
        put(client, "root/marker/", "root/a//b", "root/../x", "root/./y")
    found = list(list_tree("s3a://lake//root/", options))
    assert sorted(file.path for file in found) == sorted(paths)
    assert {file.size_bytes for file in found} == {5}
    assert list(list_tree("s3://lake/nowhere", options)) == []


def test_s3_is_listed_page_by_page(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    monkeypatch.setattr("lakefork.storage.s3_requests.KEYS_PER_LIST", 10)
    paths = put(client, *(f"root/{number:02}" for number in range(31)))
    listed = list_tree("s3://lake/root", StorageOptions(s3, "us-east-1"))
    assert next(listed).path == "s3://lake/root/00"
    client.delete_object(Bucket="lake", Key="root/30")
    put(client, "root/31")
    assert [file.path for file in listed] == [*paths[1:30], "s3://lake/root/31"]


def test_an_s3_refusal_is_an_error(s3: str) -> None:
    options = StorageOptions(s3, "us-east-1")
    with pytest.raises(OSError, match="NoSuchBucket"):
        list(list_tree("s3://no-such-bucket/x", options))


# Removal


def test_files_are_removed_missing_ones_are_fine_and_others_are_refused(tmp_path: Path) -> None:
    paths = write(tmp_path, *NAMES, "keep/target")
    (tmp_path / "link").symlink_to(paths[-1])
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    asked = [
        *paths[:-1],
        paths[0],
        *(str(tmp_path / name) for name in ("nothing", "keep", "link", "broken", "keep/target/x")),
        "relative",
    ]
    done = outcomes(remove_many(asked, LOCAL))
    assert done[: len(NAMES) + 1] == ["removed"] * (len(NAMES) + 1)
    assert done[len(NAMES) + 1 :] == [
        "missing", "it is not a file", "it is a link: only files are removed", "it is a link: only files are removed",
        "Not a directory", "its path is not absolute",
    ]  # fmt: skip
    assert Path(paths[-1]).exists()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "broken").is_symlink()


def test_a_directory_that_cannot_be_written_keeps_its_files_and_no_others(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may remove everything")
    kept, gone = write(tmp_path, "closed/x", "open/x")
    (tmp_path / "closed").chmod(0o555)
    assert outcomes(remove_many([kept, gone], LOCAL)) == ["Permission denied", "removed"]
    (tmp_path / "closed").chmod(0o755)


def test_files_on_s3_are_removed_in_bulk(bucket: tuple[Any, StorageOptions]) -> None:
    client, options = bucket
    paths = put(client, *(f"root/{name}" for name in NAMES), "root/keep", "root/vault")
    asked = [*paths[:-2], "s3n://lake//root/keep/", "s3://vault@lake/root/vault", "s3://lake/root/keepx"]
    put(client, "root/kee", "root/keepy")
    done = remove_many(asked, options)
    assert [one.path for one in done] == asked
    assert {one.outcome for one in done[:-1]} == {"removed"}
    assert done[-1].ok
    assert keys(client) == {"root/kee", "root/keepy"}
    assert all(
        "NoSuchBucket" in one for one in outcomes(remove_many(["s3://elsewhere/x"], options)) if one != "missing"
    )


def test_more_than_one_request_of_deletes(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakefork.storage.removal.KEYS_PER_DELETE", 10)
    client = boto3.client("s3", endpoint_url=s3, region_name="us-east-1")
    client.create_bucket(Bucket="lake")
    paths = put(client, *(f"root/{number}" for number in range(32)))
    assert set(outcomes(remove_many(paths[:-1], StorageOptions(s3, "us-east-1")))) == {"removed"}
    assert keys(client) == {"root/31"}


def test_refusals_in_a_bulk_delete_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            error = "<Error><Key>root/a&amp;b</Key><Code>AccessDenied</Code><Message>Access\nDenied</Message></Error>"
            content = f'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{error}</DeleteResult>'.encode()
            self.send_response(503 if len(asked) == 1 else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        options = StorageOptions(f"http://127.0.0.1:{server.server_port}", "us-east-1")
        done = remove_many(["s3://lake/root/a&b", "s3://lake/root/c"], options)
    finally:
        server.shutdown()
        server.server_close()
    assert outcomes(done) == ["Access Denied", "removed"]
    assert [one.ok for one in done] == [False, True]
    assert len(asked) == 2, "once more after a 503"
    assert b"<Key>root/a&amp;b</Key>" in asked[1]


def test_s3_that_does_not_answer_is_an_outcome(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakefork.storage.s3_requests.WAITS", (0,))
    (done,) = remove_many(["s3://lake/x"], StorageOptions("http://127.0.0.1:9", "us-east-1"))
    assert "S3 does not answer" in done.outcome
    assert not done.ok


# Trash


def test_the_trash_and_back(tmp_path: Path) -> None:
    paths = write(tmp_path, *NAMES)
    assert set(outcomes(move_to_trash(paths, str(tmp_path), DAY, LOCAL))) == {"moved"}
    assert sorted(file.path for file in list_tree(str(tmp_path), LOCAL)) == sorted(
        f"{tmp_path}/.trash/{DAY}/{name}" for name in NAMES
    )
    assert set(outcomes(move_to_trash(paths, str(tmp_path), DAY, LOCAL))) == {"moved"}, "again after a crash"
    assert set(outcomes(restore_from_trash(paths, str(tmp_path), DAY, LOCAL))) == {"moved"}
    assert set(outcomes(restore_from_trash(paths, str(tmp_path), DAY, LOCAL))) == {"moved"}
    assert sorted(file.path for file in list_tree(str(tmp_path), LOCAL)) == sorted(paths)
    assert outcomes(move_to_trash([f"{tmp_path}/nothing"], str(tmp_path), DAY, LOCAL)) == ["missing"]
    assert outcomes(restore_from_trash([f"{tmp_path}/nothing"], str(tmp_path), DAY, LOCAL)) == ["missing"]


def test_nothing_in_the_trash_or_in_its_place_is_overwritten(tmp_path: Path) -> None:
    (path,) = write(tmp_path, "a/x")
    move_to_trash([path], str(tmp_path), DAY, LOCAL)
    Path(path).write_bytes(b"another")
    (refused,) = move_to_trash([path], str(tmp_path), DAY, LOCAL)
    assert "is another file" in refused.outcome
    (refused,) = restore_from_trash([path], str(tmp_path), DAY, LOCAL)
    assert "is another file" in refused.outcome
    assert Path(path).read_bytes() == b"another"
    assert (tmp_path / ".trash" / DAY / "a/x").read_bytes() == b"12345"


def test_only_files_of_the_root_go_to_its_trash(tmp_path: Path) -> None:
    outside, inside = write(tmp_path, "ab/x", "a/x")
    (tmp_path / "a/link").symlink_to(outside)
    root = f"{tmp_path}/a"
    asked = [outside, f"{root}/../ab/x", f"{root}/link", root]
    done = move_to_trash(asked, root, DAY, LOCAL)
    assert [one.ok for one in done] == [False] * 4
    assert outcomes(done)[2] == "it is a link: only files are removed"
    assert Path(outside).exists()
    assert Path(inside).exists()


def test_on_s3_trash_is_a_tag(bucket: tuple[Any, StorageOptions]) -> None:
    client, options = bucket
    names = [f"root/{name}" for name in NAMES]
    paths = put(client, *names)
    tagged = {"lakefork-trash": DAY} if list_tree.__globals__["requests_for"]("s3://lake", options) else {}

    def tags(key: str) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in client.get_object_tagging(Bucket="lake", Key=key)["TagSet"]}

    for _ in range(2):
        assert set(outcomes(move_to_trash(paths, "s3://lake/root", DAY, options))) == {"kept"}
        assert [tags(name) for name in names] == [tagged] * len(names)
    for _ in range(2):
        assert set(outcomes(restore_from_trash(paths, "s3://lake/root", DAY, options))) == {"kept"}
        assert [tags(name) for name in names] == [{}] * len(names)
    if tagged:
        assert outcomes(move_to_trash(["s3://lake/root/nothing"], "s3://lake/root", DAY, options)) == ["missing"]


# Paths

SCHEMES = ["", "/", "file:", "file:/", "file:///", "s3://", "s3a://", "s3n://", "s3://vault@", "gs://", "S3://", "s3:/"]
PATHS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(SCHEMES),
        st.lists(st.sampled_from(["/", "//", "a", "b c", "%20", "ü", ".", "@", ":", "\n"])).map("".join),
    ),
)


@pytest.fixture(scope="module")
def catalog(module_dsn: str) -> Iterator[Connection]:
    with connect(module_dsn) as connection:
        yield connection


@given(path=PATHS)
@settings(max_examples=300, deadline=None)
def test_python_and_sql_agree_on_paths(catalog: Connection, path: str) -> None:
    row = catalog.execute(
        "SELECT lakefork.normal_path(%(path)s) AS normal, lakefork.place(%(path)s) AS place, lakefork.tidy_path(%(path)s, false) AS tidy",
        {"path": path},
    ).fetchone()
    assert row == {"normal": normal_path(path), "place": place(path), "tidy": place(path)}


@given(path=PATHS.filter(lambda path: "\n" not in path))
@settings(max_examples=200, deadline=None)
def test_below_a_directory_paths_are_compared_as_they_are_joined(catalog: Connection, path: str) -> None:
    row = catalog.execute(
        "SELECT lakefork.place(lakefork.join_path('/lake/t', %(path)s, true)) AS place, "
        "rtrim('/lake/t/' || lakefork.tidy_path(%(path)s, true), '/') AS joined",
        {"path": path},
    ).fetchone()
    assert row is not None
    assert row["place"] == row["joined"]


def test_a_place_may_be_spelled_as_a_url() -> None:
    assert spellings("/lake/a b%.parquet") == {"/lake/a b%.parquet", "/lake/a%20b%25.parquet"}
    assert spellings("s3://lake/ü=1") == {"s3://lake/ü=1", "s3://lake/%C3%BC=1", "s3://lake/%C3%BC%3D1"}
    assert spellings("s3://lake/app/t/batch-0.parquet") == {"s3://lake/app/t/batch-0.parquet"}


def test_only_directories_that_were_named_are_removed_and_only_empty_ones(tmp_path: Path) -> None:
    """Another empty one may be somebody else's, or about to be filled."""
    outside = tmp_path / "outside" / "empty"
    outside.mkdir(parents=True)
    root = tmp_path / "root"
    for name in ("held/a/b", "held/full", "fresh", "foreign/empty"):
        (root / name).mkdir(parents=True)
    (root / "held/full/file").write_text("x")
    (root / "link").symlink_to(tmp_path / "outside")
    remove_empty_directories([f"{root}//held/a/b/", f"{root}/held/full", f"{root}/link", f"{tmp_path}"], f"{root}/")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [
        "outside", "outside/empty", "root", "root/foreign", "root/foreign/empty", "root/fresh", "root/held",
        "root/held/full", "root/held/full/file", "root/link",
    ]  # fmt: skip
    (root / "held/full/file").unlink()
    for name in ("fresh", "foreign/empty", "foreign"):
        (root / name).rmdir()
    (root / "link").unlink()
    remove_empty_directories([f"{root}/held/full"], str(root))
    assert not root.exists()
    remove_empty_directories([], str(root))
    (tmp_path / "linked").symlink_to(outside)
    remove_empty_directories([], str(tmp_path / "linked"))
    assert outside.exists(), "a link is not followed"
