"""COPY out of a source by Python and by psql: the same stream, and no incomplete one."""

import pytest

from lakefork.errors import InvalidInputError, SetupError, SnapshotLostError
from lakefork.transfer.postgres_copy.psql import is_available, read_by_psql
from lakefork.transfer.postgres_copy.sessions import Endpoint, find_endpoint
from lakefork.transfer.postgres_copy.streams import digest_rows
from support.copy_lab import CopyLab

COPY = "COPY (SELECT * FROM ONLY public.t) TO STDOUT (FORMAT binary)"


def test_psql_reads_what_python_reads(lab: CopyLab) -> None:
    assert is_available()
    lab.on_source(
        "CREATE TABLE t (id int, v text); INSERT INTO t SELECT n, repeat('é', n % 50) FROM generate_series(1, 5000) n"
    )
    source, _ = find_endpoint("src")
    pieces: list[bytes] = []
    with source.open_source(None) as session:
        snapshot = (session.execute("SELECT pg_export_snapshot() AS name").fetchone() or {})["name"]
        lab.on_source("DELETE FROM t WHERE id = 1")
        by_python = digest_rows(session, COPY)
        assert read_by_psql(source, snapshot, COPY, pieces.append) == (by_python.bytes, by_python.digest)
        assert sum(map(len, pieces)) == by_python.bytes
        text = COPY.replace("binary", "text")
        assert read_by_psql(source, snapshot, text, pieces.append)[1] == digest_rows(session, text).digest
    with pytest.raises(SnapshotLostError, match="the snapshot of the copy is lost"):
        read_by_psql(source, snapshot, COPY, pieces.append)


def test_what_psql_reports_is_an_error_in_one_sentence(lab: CopyLab) -> None:
    lab.on_source(
        "CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 3); ALTER TABLE t ENABLE ROW LEVEL SECURITY"
    )
    source, _ = find_endpoint("src")
    with pytest.raises(InvalidInputError, match=r"^'src': relation \"public\.gone\" does not exist$"):
        read_by_psql(source, None, COPY.replace("public.t", "public.gone"), len)
    with pytest.raises(InvalidInputError, match="'src': division by zero"):
        read_by_psql(
            source, None, "COPY (SELECT 1 / (3 - id) FROM public.t ORDER BY id) TO STDOUT (FORMAT binary)", len
        )
    with (
        lab.login("USAGE ON SCHEMA public") as dsn,
        pytest.raises(SetupError, match=r"lacks a right: .* row-level security"),
    ):
        read_by_psql(Endpoint("src", dsn, "UTF8"), None, COPY, len)
    with pytest.raises(ZeroDivisionError):
        read_by_psql(source, None, COPY, lambda piece: 1 / 0)
