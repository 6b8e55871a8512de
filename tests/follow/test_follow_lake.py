"""Changes of a source as versions in the lake: what readers see is what the source is."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import InvalidInputError, LakeforkError, TargetDiffersError
from lakefork.transfer.follow import into_lake
from support.flush_lake import FlushLake
from support.follow_lab import FollowLab, LakeFollowLab

SOURCE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL, big text, m mood, n numeric(9,2), at timestamptz, ch char(5), a int[], j jsonb, by bytea, twice int GENERATED ALWAYS AS (2 * 3) STORED);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t (id, v, big) SELECT n, 'v' || n, repeat('b', 9000) FROM generate_series(1, 20) n;
CREATE TABLE pairs (a text, b int, v text, PRIMARY KEY (b, a)); INSERT INTO pairs VALUES ('x', 1, 'one'), ('y', 1, 'two');
"""


@pytest.fixture
def lake_lab(lab: FollowLab, tmp_path: Path) -> Iterator[LakeFollowLab]:
    with connect(lab.dsn) as connection:
        create_catalog(connection, "main", str(tmp_path / "data"))
    yield LakeFollowLab(lab.postgres, lab.dsn, lab.source, lab.target, lab.settings)


def same(lab: LakeFollowLab, table: str, columns: str, key: str = "id") -> list[tuple[Any, ...]]:
    """The table in the lake, which must be what the source has."""
    with lab.lake() as lake:
        found = lake.rows(f"SELECT {columns} FROM {table} ORDER BY {key}")
    assert found == lab.on_source(f"SELECT {columns} FROM {table} ORDER BY {key}")
    return found


def test_every_kind_of_change_arrives_as_versions(lake_lab: LakeFollowLab, tmp_path: Path) -> None:
    lab = lake_lab
    lab.on_source(SOURCE.replace(", twice int GENERATED ALWAYS AS (2 * 3) STORED", ""))
    lab.begin()
    lab.on_source(
        "UPDATE t SET v = E'tab\\t \"quote\" \\\\ ''x', ch = 'ab', m = 'ok', n = -1.5, at = '2024-03-31 02:30+01', a = '{1,NULL}', j = '{\"b\": [1]}', by = '\\x00ff' WHERE id = 1"
    )
    lab.on_source(
        "UPDATE t SET id = id + 100, big = 'sent' WHERE id IN (2, 3); DELETE FROM t WHERE id = 4; UPDATE t SET v = 'w' WHERE id = 5; UPDATE t SET v = 'x' WHERE id = 5"
    )
    lab.on_source(
        "INSERT INTO t (id, v) VALUES (30, ''); DELETE FROM t WHERE id = 30; INSERT INTO t (id, v) VALUES (30, 'again'); UPDATE pairs SET v = 'zwei' WHERE a = 'y'"
    )
    found = lab.follow()
    assert found["changes"] == 10
    rows = same(lab, "public.t", "id, v, length(big), n, at, a")
    assert rows[0][3:] == (Decimal("-1.50"), datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC), [1, None])
    same(lab, "public.pairs", "a, b, v", "b, a")
    with lab.lake() as lake:
        assert lake.rows("SELECT ch, m, j, by FROM public.t WHERE id = 1") == [("ab", "ok", '{"b": [1]}', b"\x00\xff")]
        assert lake.rows("SELECT id FROM public.t WHERE _deleted ORDER BY id") == [(2,), (3,), (4,)]
        flushes = FlushLake(lake, lab.settings, tmp_path / "expectations")
        flushes.flush()
    lab.on_source(
        "DELETE FROM t WHERE id < 10; UPDATE t SET v = 'later'; TRUNCATE pairs; INSERT INTO pairs VALUES ('z', 9, 'nine')"
    )
    lab.follow()
    same(lab, "public.t", "id, v, length(big)")
    assert same(lab, "public.pairs", "a, b, v", "b, a") == [("z", 9, "nine")]
    assert lab.follow()["changes"] == 0
    with lab.lake() as lake:
        lake.run("UPDATE public.t SET v = 'mine' WHERE id = 11")
    with pytest.raises(
        LakeforkError, match=r"nothing was cut over: .*public\.t has \d+ row\(s\) on both sides, but not"
    ):
        lab.cut_over()
    with lab.lake() as lake:
        lake.run("UPDATE public.t SET v = 'later' WHERE id = 11")
    assert lab.cut_over()["differences"] == []
    assert lab.on_source("SELECT count(*) FROM pg_publication") == [(0,)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["apply", "finish"])
def test_versions_and_position_are_one(
    lake_lab: LakeFollowLab, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    lab = lake_lab
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY, n int)")
    lab.begin()
    lab.on_source("INSERT INTO t VALUES (1, 0); UPDATE t SET n = n + 1")
    real = getattr(into_lake.LakeTarget, step)

    def dying(*arguments: Any) -> Any:
        if after:
            real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(into_lake.LakeTarget, step, dying)
        with pytest.raises(KeyboardInterrupt):
            lab.follow()
    lab.on_source("UPDATE t SET n = n + 1; INSERT INTO t VALUES (2, 7)")
    lab.follow()
    assert same(lab, "public.t", "id, n") == [(1, 2), (2, 7)]
    with lab.lake() as lake:
        assert lake.rows("SELECT count(*) FROM public.t WHERE _superseded OR NOT _superseded") == [(4,)]


def test_what_the_lake_cannot_take_stops_with_the_way_out(lake_lab: LakeFollowLab) -> None:
    lab = lake_lab
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY, d date); INSERT INTO t VALUES (1, '2024-01-01')")
    with pytest.raises(InvalidInputError, match="USER tables cannot be followed"):
        lab.begin(owner_columns={"public.t": "id"})
    lab.begin()
    lab.on_source("INSERT INTO t VALUES (2, 'infinity')")
    with pytest.raises(
        TargetDiffersError, match=r"a row of public\.t has in d a value that its type in the lake cannot hold"
    ):
        lab.follow()
    lab.on_source("DELETE FROM t WHERE id = 2")
    lab.stop()


def test_conflicts_and_new_columns_stop_with_the_key(lake_lab: LakeFollowLab) -> None:
    lab = lake_lab
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    lab.begin()
    with lab.lake() as lake:
        lake.run("DELETE FROM public.t WHERE id = 2; INSERT INTO public.t VALUES (3, 'mine')")
    lab.on_source("UPDATE t SET v = 'c' WHERE id = 2; INSERT INTO t VALUES (3, 'theirs')")
    with pytest.raises(
        TargetDiffersError, match=r"public\.t: the row with id = 2, which the source has changed, is not there"
    ):
        lab.follow()
    with lab.lake() as lake:
        lake.run("INSERT INTO public.t VALUES (2, 'b')")
    with pytest.raises(
        TargetDiffersError, match=r"public\.t: the row with id = 3, which the source has inserted, already exists"
    ):
        lab.follow()
    with lab.lake() as lake:
        lake.run("DELETE FROM public.t WHERE id = 3")
    lab.follow()
    same(lab, "public.t", "id, v")
    lab.on_source("ALTER TABLE t ADD COLUMN n int; UPDATE t SET n = 7 WHERE id = 1")
    with pytest.raises(
        TargetDiffersError, match=r"run ALTER TABLE public\.t ADD COLUMN n with its type in catalog main"
    ):
        lab.follow()
    with lab.lake() as lake:
        lake.run("ALTER TABLE public.t ADD COLUMN n INT")
    lab.follow()
    same(lab, "public.t", "id, v, n")
