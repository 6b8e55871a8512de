"""A copy into another Postgres: what is there afterwards, and what is refused."""

import json
from typing import Any

import psycopg
import pytest

from lakefork.errors import ConflictError, InvalidInputError, SetupError
from support.copy_lab import CopyLab, fresh_database

LONG = "x" * 60 + "é"  # 62 bytes
SOURCE = f"""
CREATE EXTENSION IF NOT EXISTS plpgsql;
CREATE SCHEMA "select"; CREATE SCHEMA "Upper Case";
CREATE TYPE "select".mood AS ENUM ('sad', 'ok', 'it''s fine');
CREATE TYPE pair AS (a int, b "select".mood);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE floatrange AS RANGE (subtype = float8);
CREATE FUNCTION double(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * n';
CREATE SEQUENCE alone MINVALUE 5 START 7; CREATE SEQUENCE called; SELECT setval('called', 41); SELECT setval('alone', 9, false);

CREATE TABLE "select"."we""ird 'name" ("from" int PRIMARY KEY, "Ünï" text DEFAULT 'a''b', "a.b" text);
INSERT INTO "select"."we""ird 'name" VALUES (1, E'tab\\there', '\\\\.'), (2, E'new\\nline', ''), (3, NULL, E'\\\\N');
CREATE TABLE "Upper Case"."{LONG}" ("{LONG}" int UNIQUE);
INSERT INTO "Upper Case"."{LONG}" VALUES (1), (NULL), (NULL);

CREATE TABLE kinds (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, f8 float8, f4 real, n numeric, d date, ts timestamp, tz timestamptz, t time, ttz timetz,
    i interval, by bytea, j json, jb jsonb, u uuid, m "select".mood, ms "select".mood[], p positive, pr pair, prs pair[], r floatrange, ir int4range,
    mr int4multirange, a2 int[][], inet inet, bits bit varying(9), cl regclass, c char(5), money money, vec tsvector, "char" "char", o oid, pt point
);
INSERT INTO kinds (f8, f4, n, d, ts, tz, t, ttz, i, by, j, jb, u, m, ms, p, pr, prs, r, ir, mr, a2, inet, bits, cl, c, money, vec, "char", o, pt) VALUES
    (0.1 + 0.2, 1e-45, 'NaN', '0044-03-15 BC', '4713-01-01 00:00:00 BC', '2024-03-31 02:30:00+01', '24:00', '12:00+05:30', '1 mon -3 days 04:05:06.789',
     '\\x00ff', '{{"b": 1,  "a": 2}}', '{{"b": 1, "a": [null]}}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'it''s fine', '{{sad,NULL,ok}}', 7, (1, 'ok'),
     ARRAY[(2, 'sad')::pair], '[1.5,2.5)', '(,5]', '{{[1,3),[7,9)}}', '{{{{1,2}},{{3,NULL}}}}', '10.0.0.0/8', B'10101', 'pg_class', 'ab', '12.34',
     'a:1 cat', 'z', 4000000000, '(1,2)'),
    ('NaN', '-Infinity', 'Infinity', 'infinity', '-infinity', 'infinity', '00:00', '00:00-12', 'P0Y', '', 'null', 'null', NULL, NULL, '{{}}', NULL, NULL, NULL,
     'empty', 'empty', '{{}}', '{{}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    ('-Infinity', 'NaN', 12345678901234567890123456789012345678901234567890.123456789, '5874897-12-31', '294276-12-31 23:59:59.999999', NULL, NULL, NULL, NULL,
     repeat('ab', 20000)::bytea, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[2:3]={{7,8}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL);

CREATE COLLATION mine (locale = 'C'); CREATE TABLE collated (a text COLLATE mine, b text COLLATE mine); INSERT INTO collated VALUES ('a', 'B');
CREATE TABLE computed (id int, twice int GENERATED ALWAYS AS (double(id)) STORED, "order" int DEFAULT nextval('called'));
INSERT INTO computed (id) SELECT generate_series(1, 5);
CREATE TABLE only_computed (one int GENERATED ALWAYS AS (1) STORED); INSERT INTO only_computed DEFAULT VALUES; INSERT INTO only_computed DEFAULT VALUES;
CREATE TABLE no_columns (); INSERT INTO no_columns DEFAULT VALUES; INSERT INTO no_columns DEFAULT VALUES; INSERT INTO no_columns DEFAULT VALUES;
CREATE TABLE dropped (a int, gone text, b text); INSERT INTO dropped VALUES (1, 'x', 'y'); ALTER TABLE dropped DROP COLUMN gone;
CREATE TABLE empty (id bigserial PRIMARY KEY, v text);
CREATE UNLOGGED TABLE unlogged (id int); INSERT INTO unlogged VALUES (1);
CREATE TABLE parent (id int, v text); CREATE TABLE child (extra int) INHERITS (parent);
INSERT INTO parent VALUES (1, 'parent'); INSERT INTO child VALUES (2, 'child', 3);

CREATE TABLE parted (id int, day date NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM ('2024-02-01') TO ('2024-03-01') PARTITION BY HASH (id);
CREATE TABLE parted_2a PARTITION OF parted_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parted_2b PARTITION OF parted_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE INDEX ON parted (day);
INSERT INTO parted SELECT n, '2024-01-01'::date + n % 60 FROM generate_series(0, 99) n;

CREATE TABLE customers (id int PRIMARY KEY, email text, CONSTRAINT emails UNIQUE (email) DEFERRABLE INITIALLY DEFERRED,
                        CONSTRAINT has_at CHECK (email LIKE '%@%'), EXCLUDE USING btree (email WITH =));
CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customers ON DELETE CASCADE, part_id int, part_day date,
                     FOREIGN KEY (part_id, part_day) REFERENCES parted);
ALTER TABLE customers CLUSTER ON customers_pkey;
CREATE UNIQUE INDEX by_email ON customers (lower(email)) WHERE id > 0; CREATE INDEX covering ON orders (customer) INCLUDE (part_id);
ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_pkey;
COMMENT ON INDEX by_email IS 'said of an index'; COMMENT ON CONSTRAINT emails ON customers IS 'said of a constraint';
COMMENT ON TABLE customers IS 'said of a table'; COMMENT ON COLUMN customers.email IS 'said of a column';
INSERT INTO customers SELECT n, 'c' || n || '@x' FROM generate_series(1, 50) n;
INSERT INTO orders SELECT n, n % 50 + 1, n, '2024-01-01'::date + n % 60 FROM generate_series(0, 49) n;
ALTER TABLE orders ADD CONSTRAINT later FOREIGN KEY (id) REFERENCES customers NOT VALID;
CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'a trigger ran'; END$$;
CREATE TRIGGER touch BEFORE INSERT ON customers FOR EACH ROW EXECUTE FUNCTION touched();
CREATE RULE quiet AS ON DELETE TO orders DO INSTEAD NOTHING;
CREATE VIEW big AS SELECT * FROM customers WHERE id > 25; CREATE MATERIALIZED VIEW kept AS SELECT count(*) AS n FROM orders; CREATE INDEX ON kept (n);
CREATE STATISTICS together (dependencies) ON customer, part_id FROM orders;
ALTER TABLE customers ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON customers USING (id < 10);
GRANT SELECT ON customers TO PUBLIC;
SELECT lo_from_bytea(9001, 'small'); SELECT lo_from_bytea(9002, repeat('0123456789', 250000)::bytea); SELECT lo_create(9003);
COMMENT ON LARGE OBJECT 9001 IS 'it''s said'; GRANT SELECT ON LARGE OBJECT 9002 TO PUBLIC;
"""
# What no comparison of tables shows.
LOOKS = {
    "comments": "SELECT d.classoid::regclass::text, d.description FROM pg_description d WHERE d.objoid >= 9000 AND d.objoid < 9999 OR d.objoid >= 16384 ORDER BY 1, 2",
    "sequences": "SELECT last_value, is_called FROM called UNION ALL SELECT last_value, is_called FROM alone UNION ALL SELECT last_value, is_called FROM kinds_id_seq "
    "UNION ALL SELECT last_value, is_called FROM empty_id_seq",
    "views": "SELECT (SELECT count(*) FROM big), (SELECT n FROM kept)",
    "rules": "SELECT rulename, ev_class::regclass::text FROM pg_rules r JOIN pg_rewrite USING (rulename) WHERE schemaname = 'public' ORDER BY 1",
    "policies": "SELECT policyname, qual FROM pg_policies ORDER BY 1",
    "clustered": "SELECT indexrelid::regclass::text, indisclustered, indisreplident FROM pg_index WHERE indisclustered OR indisreplident ORDER BY 1",
    "attached": "SELECT inhrelid::regclass::text, inhparent::regclass::text FROM pg_inherits ORDER BY 1",
    "statistics": "SELECT stxname, stxkeys::text FROM pg_statistic_ext ORDER BY 1",
    "rights": "SELECT relname, relacl::text FROM pg_class WHERE relacl IS NOT NULL AND relname = 'customers'",
    "large objects": "SELECT m.oid::int, md5(lo_get(m.oid)), m.lomacl::text FROM pg_largeobject_metadata m ORDER BY 1",
    "valid": "SELECT conname, convalidated, condeferred FROM pg_constraint WHERE contype IN ('f', 'u') ORDER BY 1, 2",
    "only own rows": "SELECT (SELECT count(*) FROM ONLY parent), (SELECT count(*) FROM parent)",
    "zero columns": "SELECT (SELECT count(*) FROM no_columns), (SELECT count(*) FROM only_computed)",
    "invalid indexes": "SELECT count(*) FROM pg_index WHERE NOT indisvalid",
}


def test_everything_that_a_database_has_is_copied(lab: CopyLab) -> None:
    """Names, types, kinds of tables, indexes, constraints, sequences, large objects: the comparison at the end finds them equal."""
    lab.on_source(SOURCE)
    with psycopg.connect(lab.source) as temporary:
        temporary.execute("CREATE TEMPORARY TABLE mine (id int)")
        found = lab.copy(copy_id="all")
    for what, query in LOOKS.items():
        assert lab.on_target(query) == lab.on_source(query), what
    assert lab.on_target("SELECT count(*) FROM pg_class WHERE relname = 'mine'") == [(0,)]
    assert lab.on_target("SELECT nspname FROM pg_namespace WHERE nspname = 'lakefork_copy'") == []
    (row,) = lab.catalog(
        "SELECT status, phase, parts = parts_done, steps = steps_done, rows_done, differences FROM system.copies"
    )
    assert row == ("completed", "done", True, True, found["rows"], [])
    assert lab.catalog(
        "SELECT count(*) FROM lakefork.copy_step WHERE kind = 'part' AND (rows IS NULL OR digest IS NULL OR seconds IS NULL)"
    ) == [(0,)]
    password = lab.source.split(":")[2].split("@")[0]
    everything = json.dumps(
        lab.catalog("SELECT to_jsonb(c) FROM lakefork.copy c UNION ALL SELECT to_jsonb(s) FROM lakefork.copy_step s")
    )
    assert password not in everything and password not in "\n".join(lab.lines)


def test_bytes_without_an_encoding_are_copied_as_they_are(lab: CopyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    with fresh_database(lab.postgres, options) as source, fresh_database(lab.postgres, options) as target:
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", source)
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__DST", target)
        lab.sql(
            source,
            "CREATE TABLE t (id int PRIMARY KEY, v text CHECK (v <> '')); INSERT INTO t VALUES (1, E'\\xff\\xe9'), (2, 'plain')",
        )
        lab.copy()
        assert lab.sql(target, "SELECT encode(v::bytea, 'hex') FROM t ORDER BY id") == [(b"ffe9",), (b"706c61696e",)]


def test_a_difference_is_found_and_named(lab: CopyLab) -> None:
    lab.on_source(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, 'v' FROM generate_series(1, 100) n; CREATE TABLE u (id int); INSERT INTO u VALUES (1)"
    )
    lab.copy(copy_id="one")
    lab.on_target("UPDATE t SET v = 'w' WHERE id = 50; DROP TABLE u; CREATE INDEX extra ON t (v)")
    differences = lab.compare("one")
    assert (
        differences[0] == "table public.u is missing on the target"
        or "table public.u is missing on the target" in differences
    )
    assert "index extra of public.t is only on the target" in differences
    assert "public.t has 100 row(s) on both sides, but not the same ones" in differences


FILTERED = """
CREATE SCHEMA app; CREATE SCHEMA log;
CREATE TABLE app.a (id serial PRIMARY KEY); CREATE TABLE app.b (id int PRIMARY KEY, a int REFERENCES app.a); CREATE INDEX slow ON app.b (a);
CREATE TABLE log.lines (id serial PRIMARY KEY, v text); CREATE TABLE app.about (line int REFERENCES log.lines, big int);
CREATE VIEW app.recent AS SELECT * FROM log.lines; CREATE VIEW app.recent_2 AS SELECT * FROM app.recent;
INSERT INTO app.a DEFAULT VALUES; INSERT INTO app.b VALUES (1, 1); INSERT INTO log.lines (v) VALUES ('x'); INSERT INTO app.about VALUES (1, 2);
COMMENT ON INDEX app.slow IS 'slow'; COMMENT ON TABLE log.lines IS 'lines'; GRANT SELECT ON log.lines TO PUBLIC;
"""


def test_filters_leave_out_tables_and_what_cannot_be_without_them(lab: CopyLab) -> None:
    lab.on_source(FILTERED)
    lab.copy(
        exclude=["log.*"], exclude_data=["app.a*"], exclude_indexes=["app.slow"], skip=["constraints"], compare=True
    )
    assert lab.on_target(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'v', 'S') AND oid >= 16384 ORDER BY 1"
    ) == [("a",), ("a_id_seq",), ("about",), ("b",)]
    assert lab.on_target(
        "SELECT (SELECT count(*) FROM app.a), (SELECT count(*) FROM app.b), (SELECT count(*) FROM app.about)"
    ) == [(0, 1, 0)]
    assert lab.on_target(
        "SELECT count(*) FROM pg_index WHERE indexrelid >= 16384 AND indrelid::regclass::text LIKE 'app.%'"
    ) == [(0,)]
    said = "\n".join(lab.lines)
    assert "view app.recent_2 is left out, because it needs something that is excluded" in said
    (notes,) = lab.catalog("SELECT notes FROM system.copies")[0]
    assert any("app.recent " in note for note in notes)


def test_only_what_is_included_is_copied(lab: CopyLab) -> None:
    lab.on_source(FILTERED)
    lab.copy(include=["app.a*", "log.lines"], exclude=["app.about"])
    assert (
        lab.on_target("SELECT relname FROM pg_class WHERE relkind IN ('r', 'v') AND oid >= 16384 ORDER BY 1")
        == [("a",), ("lines",), ("recent",)][:2]
    )
    with pytest.raises(InvalidInputError, match=r"exclude: nothing matches the pattern 'app.typo'"):
        lab.copy(exclude=["app.typo"], drop_if_exists=True)


def test_what_cannot_work_is_refused_before_anything_is_changed(lab: CopyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.on_source("CREATE TABLE t (id int)")
    with pytest.raises(InvalidInputError, match="are the same database"):
        lab.copy(target="src")
    with pytest.raises(SetupError, match="there is no connection 'elsewhere': set LAKEFORK_CONNECTIONS__ELSEWHERE"):
        lab.copy(source="elsewhere")
    monkeypatch.setenv("LAKEFORK_CONNECTIONS__GONE", lab.source.replace("lakefork:", "lakefork:wrong"))
    with pytest.raises(SetupError, match="cannot connect to 'gone'") as refused:
        lab.copy(source="gone")
    assert "wrong" not in str(refused.value)
    lab.on_target("CREATE TABLE there (id int)")
    with pytest.raises(ConflictError, match=r"target 'dst' is not empty \(it has public.there\)"):
        lab.copy()
    assert lab.catalog("SELECT count(*) FROM lakefork.copy") == [(0,)]
    lab.on_target("CREATE TABLE t (id text); INSERT INTO t VALUES ('old'); CREATE VIEW on_t AS SELECT * FROM t")
    lab.copy(drop_if_exists=True)
    assert lab.on_target("SELECT count(*) FROM t") == [(0,)]
    assert lab.on_target("SELECT to_regclass('there') IS NOT NULL") == [(True,)]


def test_row_security_never_makes_a_copy_of_some_rows(lab: CopyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.on_source(
        "CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2); ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id = 1)"
    )
    with lab.login("SELECT ON ALL TABLES IN SCHEMA public") as dsn:
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", dsn)
        with pytest.raises((InvalidInputError, SetupError), match="row-level security policy"):
            lab.copy(copy_id="one")
        lab.abandon("one")
        lab.on_source("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
        lab.copy(copy_id="again", drop_if_exists=True)  # a role that may only read is enough
    assert lab.on_target("SELECT sum(id) FROM t") == [(3,)]


def test_roles_are_made_on_request(lab: CopyLab) -> None:
    lab.on_source("CREATE ROLE copy_owner NOLOGIN; CREATE TABLE t (id int); ALTER TABLE t OWNER TO copy_owner")
    try:
        lab.copy()
        assert lab.on_target("SELECT relowner::regrole::text FROM pg_class WHERE relname = 't'") == [("copy_owner",)]
    finally:
        lab.on_target("DROP TABLE t")
        lab.on_source("DROP TABLE t; DROP ROLE copy_owner")


def test_a_dry_run_prints_the_plan_and_touches_nothing(lab: CopyLab) -> None:
    lab.on_source(
        "CREATE TABLE large (id int PRIMARY KEY, v text); INSERT INTO large SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n; ANALYZE; CREATE TABLE s (id int)"
    )
    found = lab.copy(dry_run=True, split_larger_than="1MB")
    assert found["tables"] == 2 and found["parts"] == 3 and found["dry_run"]
    assert any(line.startswith("public.large: 2.9 MB in 3 part(s), split by the key id") for line in lab.lines), (
        lab.lines
    )
    assert lab.catalog("SELECT count(*) FROM lakefork.copy") == [(0,)]
    assert lab.on_target("SELECT count(*) FROM pg_class WHERE relname = 'large'") == [(0,)]


def test_the_source_may_be_written_to_meanwhile(lab: CopyLab) -> None:
    """The target is the source as it was at the snapshot: two tables that always agree, agree."""
    lab.on_source(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text); INSERT INTO a SELECT n, repeat('v', 200) FROM generate_series(1, 20000) n; INSERT INTO b SELECT * FROM a"
    )
    writer = lab.writing(
        "BEGIN; INSERT INTO a SELECT max(id) + 1, 'new' FROM a; INSERT INTO b SELECT max(id) + 1, 'new' FROM b; DELETE FROM a WHERE id = (SELECT min(id) FROM a); DELETE FROM b WHERE id = (SELECT min(id) FROM b); COMMIT"
    )
    with writer as rounds:
        lab.copy(split_larger_than="1MB")
        assert rounds() > 3
    equal: Any = lab.on_target("SELECT count(*), min(id), max(id) - min(id) FROM a")
    assert equal == lab.on_target("SELECT count(*), min(id), max(id) - min(id) FROM b") and equal[0][0] == 20000
