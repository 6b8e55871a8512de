"""A copy into the lake: what the tables hold, how files are written, and what is refused."""

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import ConflictError, InvalidInputError, JobFailedError
from support.copy_lab import CopyLab

SOURCE = """
CREATE SCHEMA app; CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN cents AS numeric(12,2);
CREATE TABLE app.kinds (
    id int PRIMARY KEY, b boolean, s smallint, l bigint, f real, d double precision, t text NOT NULL, v varchar(9), c char(4), by bytea, da date, ti time, ts timestamp,
    tz timestamptz, u uuid, j json, jb jsonb, n numeric(10,3), m mood, ms mood[], cs cents, ar int[], nar numeric(5,1)[], o oid, gen int GENERATED ALWAYS AS (7) STORED
);
INSERT INTO app.kinds VALUES
    (2, true, -5, 9007199254740993, 1.5, 0.1, 'x', 'v', 'ab', '\\x00ff', '0044-03-15', '23:59:59.999999', '2024-01-01 00:00:00.000001', '2024-03-31 02:30:00+01',
     'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":  1}', '{"b": 2}', 1234567.891, 'ok', '{sad,NULL}', 3.14, '{1,NULL,3}', '{1.5,NULL}', 4000000000),
    (1, NULL, NULL, NULL, 'NaN', '-Infinity', '', NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, 'null', NULL, NULL, '{}', NULL, '{}', NULL, NULL);
CREATE TABLE app.no_key (v text); INSERT INTO app.no_key VALUES ('same'), ('same'), (NULL);
CREATE TABLE app.notes (id int PRIMARY KEY, owner text NOT NULL, text text); INSERT INTO app.notes SELECT n, CASE WHEN n % 2 = 0 THEN 'ada' ELSE 'bob' END, 'n' || n FROM generate_series(1, 10) n;
CREATE TABLE app.empty (id int PRIMARY KEY); CREATE TABLE public."Odd ""name" ("a.b" int, "from" text, PRIMARY KEY ("from", "a.b")); INSERT INTO public."Odd ""name" VALUES (1, 'x'), (2, 'w');
CREATE TABLE app.large (id int PRIMARY KEY, v text); INSERT INTO app.large SELECT n, repeat('x', 90) || n FROM generate_series(1, 20000) n; ANALYZE;
"""


@pytest.fixture
def catalog(lab: CopyLab, tmp_path: Path) -> str:
    with connect(lab.dsn) as connection:
        create_catalog(connection, "main", str(tmp_path / "data"))
    return "main"


def test_tables_appear_in_one_commit_with_exact_rows(lab: CopyLab, catalog: str) -> None:
    lab.on_source(SOURCE)
    before = lab.catalog("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
    found = lab.into_lake(copy_id="one", owner_columns={"app.notes": "owner"}, split_larger_than="1MB")
    assert found["snapshot_id"] == before + 1 == lab.catalog("SELECT max(snapshot_id) FROM ducklake_snapshot")[0][0]
    assert (found["tables"], found["rows"]) == (6, 20017)
    with lab.lake() as lake:
        (first, second) = lake.rows("SELECT * FROM app.kinds ORDER BY id")
        assert second[:18] == (
            2, True, -5, 9007199254740993, 1.5, 0.1, "x", "v", "ab", b"\x00\xff", datetime.date(44, 3, 15), datetime.time(23, 59, 59, 999999),
            datetime.datetime(2024, 1, 1, 0, 0, 0, 1), datetime.datetime(2024, 3, 31, 1, 30, tzinfo=datetime.UTC),
            uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"), '{"a":  1}', '{"b": 2}', Decimal("1234567.891"),
        )  # fmt: skip
        assert second[18:25] == (
            "ok",
            ["sad", None],
            Decimal("3.14"),
            [1, None, 3],
            [Decimal("1.5"), None],
            4000000000,
            7,
        )
        assert (
            first[5] == float("-inf")
            and first[4] != first[4]
            and first[9] == b""
            and first[16] == "null"
            and first[21] == []
        )
        assert lake.rows("SELECT v FROM app.no_key ORDER BY v") == [("same",), ("same",), (None,)]
        assert len({key for (key,) in lake.rows("SELECT row_key FROM app.no_key")}) == 3
        assert lake.rows("SELECT id, text FROM app.notes ORDER BY id", user="ada") == [
            (n, "ada", f"n{n}")[::2] for n in range(2, 11, 2)
        ]
        assert lake.rows("SELECT count(*) FROM app.empty") == [(0,)]
        assert lake.rows('SELECT "a.b" FROM public."Odd ""name" ORDER BY "from"') == [(2,), (1,)]
        assert lake.rows("SELECT count(*), sum(id), max(v) FROM app.large") == [(20000, 200010000, "x" * 90 + "9999")]
        lake.run("UPDATE app.large SET v = 'new' WHERE id = 7; DELETE FROM app.no_key WHERE v IS NULL")
        assert lake.rows("SELECT v FROM app.large WHERE id IN (7, 8)") != [("new",)]
    assert lab.catalog("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    (row,) = lab.catalog("SELECT status, snapshot_id, differences, snapshot_lsn IS NOT NULL FROM system.copies")
    assert row == ("completed", found["snapshot_id"], [], True)
    assert lab.catalog(
        "SELECT commit_message FROM ducklake_snapshot_changes WHERE snapshot_id = %s", found["snapshot_id"]
    )[0][0].startswith("copy of src at ")
    parts = lab.catalog(
        "SELECT count(*) FROM lakefork.copy_step s JOIN lakefork.copy_table t USING (copy_id, table_oid) WHERE t.name = 'large'"
    )
    assert parts[0][0] == 3


REFUSED = {
    "CREATE TABLE n.no_type (id int PRIMARY KEY, i interval, n numeric)": r"the lake has no type for n.no_type.i \(interval\), n.no_type.n \(numeric\)",
    "CREATE TABLE n.infinite (id int PRIMARY KEY, d date); INSERT INTO n.infinite VALUES (1, 'infinity')": "a row of n.infinite has in d a value",
    "CREATE TABLE n.bc (id int PRIMARY KEY, d timestamp); INSERT INTO n.bc VALUES (1, '0044-03-15 BC')": "a row of n.bc has in d a value",
    "CREATE TABLE n.nan (id int PRIMARY KEY, n numeric(5,1)); INSERT INTO n.nan VALUES (1, 'NaN')": "a row of n.nan has in n a value",
    "CREATE TABLE n.deep (id int PRIMARY KEY, a int[]); INSERT INTO n.deep VALUES (1, '{{1},{2}}')": "a row of n.deep has in a a value",
    "CREATE TABLE n.reserved (_seq int PRIMARY KEY)": "n.reserved: the name _seq is reserved",
    'CREATE TABLE n.twice ("A" int PRIMARY KEY, a int)': "two columns are called a, but for upper and lower case",
    "CREATE TABLE n.there (id int PRIMARY KEY)": "table n.there already exists in catalog main",
}


def test_what_the_lake_cannot_hold_is_refused_by_name(lab: CopyLab, catalog: str) -> None:
    lab.on_source("CREATE SCHEMA n; " + "; ".join(REFUSED))
    with lab.lake() as lake:
        lake.run("CREATE NAMESPACE n; CREATE TABLE n.there (id INT PRIMARY KEY)")
        for statements, sentence in REFUSED.items():
            table = statements.split()[2]
            with pytest.raises((InvalidInputError, ConflictError), match=sentence):
                lab.into_lake(include=[table], compare=False)
        assert lake.rows("SELECT table_name FROM system.tables") == [("there",)]


def test_only_tables_matter_to_the_lake(lab: CopyLab, catalog: str) -> None:
    """What else depends on something excluded is not copied anyway."""
    lab.on_source(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); CREATE TABLE b (id int PRIMARY KEY); "
        "CREATE FUNCTION of_b(b) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE VIEW view_of_b AS SELECT * FROM b"
    )
    assert lab.into_lake(include=["public.a"])["rows"] == 1


def test_defaults_that_the_lake_can_have_are_kept(lab: CopyLab, catalog: str) -> None:
    lab.on_source(
        """CREATE TYPE mood AS ENUM ('sad', 'it''s ok'); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 7';
        CREATE TABLE t (id bigserial PRIMARY KEY, t text DEFAULT 'a''b(c)::d', n numeric(9,2) DEFAULT -1.50, m mood DEFAULT 'it''s ok', b boolean DEFAULT true,
            d date DEFAULT '2024-02-29', u uuid DEFAULT gen_random_uuid(), at timestamptz NOT NULL DEFAULT now(), j jsonb DEFAULT '{"a": [1]}', x int DEFAULT f(), z text DEFAULT NULL)"""
    )
    lab.into_lake(copy_id="one")
    with lab.lake() as lake:
        lake.run("INSERT INTO public.t (x) VALUES (1)")
        ((t, n, m, b, d, u, at, j, x, z),) = lake.rows("SELECT t, n, m, b, d, u, at, j, x, z FROM public.t")
        assert (t, n, m, b, d, j, x, z) == (
            "a'b(c)::d",
            Decimal("-1.50"),
            "it's ok",
            True,
            datetime.date(2024, 2, 29),
            '{"a": [1]}',
            1,
            None,
        )
        assert isinstance(u, uuid.UUID) and abs(at - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(
            minutes=5
        )
    assert lab.catalog("SELECT notes FROM system.copies") == [
        (["default public.f() of public.t.x is not kept: the lake has no such function"],)
    ]


def test_types_without_an_equal_become_text_on_request(lab: CopyLab, catalog: str) -> None:
    lab.on_source(
        "CREATE TABLE t (id int PRIMARY KEY, i interval, r int4range); INSERT INTO t VALUES (1, '1 mon 2 days', '[1,5)')"
    )
    lab.into_lake(unsupported_types="text")
    with lab.lake() as lake:
        assert lake.rows("SELECT * FROM public.t")[0][:3] == (1, "1 mon 2 days", "[1,5)")


def test_a_failed_audit_publishes_nothing_and_resume_goes_on_with_what_is_staged(lab: CopyLab, catalog: str) -> None:
    lab.on_source(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (3)"
    )
    with pytest.raises(JobFailedError, match=r"nothing was published, as the audit failed for 1 table\(s\): public.u"):
        lab.into_lake(copy_id="one", audit=Refuses("public.u"))
    staged = lab.catalog("SELECT count(*) FROM lakefork.staged_file")[0][0]
    assert staged == 2 and lab.catalog("SELECT status FROM system.copies") == [("failed",)]
    finished = lab.catalog("SELECT finished_at FROM lakefork.copy_step ORDER BY step_id")
    lab.into_lake(copy_id="one", resume=True)
    assert lab.catalog("SELECT finished_at FROM lakefork.copy_step ORDER BY step_id") == finished
    with lab.lake() as lake:
        assert lake.rows("SELECT count(*) FROM public.t") == [(2,)]


def test_abandon_removes_what_was_staged(lab: CopyLab, catalog: str, tmp_path: Path) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    with pytest.raises(JobFailedError):
        lab.into_lake(copy_id="one", audit=Refuses("public.t"))
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    lab.abandon("one")
    assert list(tmp_path.rglob("*.parquet")) == []
    assert lab.catalog("SELECT count(*) FROM lakefork.staged_file") == [(0,)]
    with pytest.raises(InvalidInputError, match="copy one was abandoned"):
        lab.into_lake(copy_id="one", resume=True)


class Refuses:
    """An audit that one table fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def judge(self, tables: Any, files: Any, lost: Any) -> list[Any]:
        from lakefork.upkeep.flush.publish import Verdict

        return [Verdict(str(one.definition) != self._name, "refused by the test", []) for one in tables]
