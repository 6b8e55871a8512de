"""The grammar: every form that is understood, every refusal with its sentence and its place, hostile texts."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from lakefork.errors import InvalidInputError
from lakefork.model.tables import TableKind
from lakefork.sql.parse.grammar import (
    MAX_TEXT,
    SqlSyntaxError,
    is_default,
    parse,
    table_name,
    time_travel,
)
from lakefork.sql.parse.statements import (
    AddColumn,
    AlterNamespace,
    AlterTable,
    ColumnDefinition,
    CreateNamespace,
    CreateTable,
    Delete,
    DescribeTable,
    DropColumn,
    DropNamespace,
    DropTable,
    Explain,
    FlushPolicy,
    FlushTable,
    Insert,
    ModifyColumn,
    Page,
    RenameColumn,
    Select,
    SetFlushPolicy,
    SetOptions,
    ShowManifestCache,
    ShowNamespaces,
    ShowTables,
    ShowTableStats,
    Statement,
    TableName,
    Update,
)
from support.sql_texts import END, soup, sql

T = TableName(None, "t")
NS_T = TableName("ns", "t")


def one(text: str) -> Any:
    statements = parse(text)
    assert len(statements) == 1
    return statements[0]


def refusal(text: str) -> SqlSyntaxError:
    with pytest.raises(SqlSyntaxError) as caught:
        parse(text)
    assert caught.value.code == "syntax_error"
    assert isinstance(caught.value, InvalidInputError)
    return caught.value


def refused(text: str, sentence: str, line: int, column: int) -> None:
    error = refusal(text)
    assert str(error) == f"{sentence} (line {line}, column {column})"
    assert (error.line, error.column) == (line, column)


SIMPLE: list[tuple[str, Statement]] = [
    ("CREATE NAMESPACE a", CreateNamespace(text="", name="a")),
    ("create namespace if not exists a", CreateNamespace(text="", name="a", if_not_exists=True)),
    ('CREATE NAMESPACE "A b" WITH OPTIONS (x = 1)', CreateNamespace(text="", name="A b", options={"x": 1})),
    ("CREATE NAMESPACE a OPTIONS (x = 1)", CreateNamespace(text="", name="a", options={"x": 1})),
    (
        "ALTER NAMESPACE a SET OPTIONS (retention_days = 90, x = '')",
        AlterNamespace(text="", name="a", options={"retention_days": 90, "x": ""}),
    ),
    ("DROP NAMESPACE a", DropNamespace(text="", name="a")),
    ("DROP NAMESPACE IF EXISTS a", DropNamespace(text="", name="a", if_exists=True)),
    ("SHOW NAMESPACES", ShowNamespaces(text="")),
    ("SHOW NAMESPACES LIMIT 5", ShowNamespaces(text="", page=Page(limit=5))),
    ("SHOW NAMESPACES LIMIT 5 OFFSET 2", ShowNamespaces(text="", page=Page(limit=5, offset=2))),
    ("SHOW TABLES", ShowTables(text="")),
    ("SHOW TABLES IN ns", ShowTables(text="", namespace="ns")),
    ("SHOW TABLES IN ns LIMIT 1 OFFSET 3", ShowTables(text="", namespace="ns", page=Page(limit=1, offset=3))),
    ("DROP TABLE t", DropTable(text="", kind=None, name=T)),
    ("DROP USER TABLE IF EXISTS ns.t", DropTable(text="", kind=TableKind.USER, name=NS_T, if_exists=True)),
    ("drop shared table t", DropTable(text="", kind=TableKind.SHARED, name=T)),
    ("DROP STREAM TABLE t", DropTable(text="", kind=TableKind.STREAM, name=T)),
    ("DESCRIBE t", DescribeTable(text="", name=T)),
    ("DESCRIBE TABLE ns.t", DescribeTable(text="", name=NS_T)),
    ("DESC t", DescribeTable(text="", name=T)),
    ("DESC TABLE ns.t", DescribeTable(text="", name=NS_T)),
    ("SHOW TABLE STATS ns.t", ShowTableStats(text="", name=NS_T)),
    ("SHOW STATS FOR TABLE t", ShowTableStats(text="", name=T)),
    ("SHOW MANIFEST CACHE", ShowManifestCache(text="")),
    ("FLUSH TABLE ns.t", FlushTable(text="", name=NS_T)),
    ('FLUSH TABLE "n.s"."T t"', FlushTable(text="", name=TableName("n.s", "T t"))),
    ("FLUSH TABLE 🦆.gänse", FlushTable(text="", name=TableName("🦆", "gänse"))),
]


@pytest.mark.parametrize(("text", "expected"), SIMPLE, ids=[text for text, _ in SIMPLE])
def test_a_simple_statement_becomes_its_object(text: str, expected: Statement) -> None:
    found = one(text)
    assert type(found) is type(expected)
    assert found.text == text
    assert {**vars(found), "text": ""} == vars(expected)


def test_statements_are_separated_by_semicolons_and_keep_their_exact_text() -> None:
    text = ";; SELECT 'a;b' -- one ; two\n; /* three; */ drop  table\n t ;\n-- four\nSHOW TABLES;"
    assert [found.text for found in parse(text)] == ["SELECT 'a;b'", "drop  table\n t", "SHOW TABLES"]


@pytest.mark.parametrize("text", ["", " \n\t", ";", ";;;", "-- only\n", "/* only */", "/* a /* b */ c */ ; -- d"])
def test_a_text_without_statements_is_an_empty_list(text: str) -> None:
    assert parse(text) == []


def test_the_text_of_a_statement_ends_with_its_last_token() -> None:
    assert one("ALTER TABLE t ADD c DOUBLE   PRECISION  ; ").text == "ALTER TABLE t ADD c DOUBLE   PRECISION"
    assert one(" DELETE FROM t AS USER 'u' -- x").text == "DELETE FROM t AS USER 'u'"


def test_create_table_with_everything() -> None:
    found = one(
        """CREATE USER TABLE IF NOT EXISTS ns.messages (
            id BIGINT DEFAULT SNOWFLAKE_ID() PRIMARY KEY,
            "Body Text" STRING NOT NULL DEFAULT 'x',
            note TEXT NULL,
            at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL
        ) WITH (deleted_retention = '7d') FLUSH POLICY ROWS 5000 INTERVAL '1 minute' LOCATION 's3://b/${user_id}/'"""
    )
    assert isinstance(found, CreateTable)
    assert (found.kind, found.name, found.if_not_exists) == (TableKind.USER, TableName("ns", "messages"), True)
    assert [(c.name, sql(c.type), c.nullable, sql(c.default)) for c in found.columns] == [
        ("id", "BIGINT", False, "SNOWFLAKE_ID()"),
        ("Body Text", "TEXT", False, "'x'"),
        ("note", "TEXT", True, None),
        ("at", "TIMESTAMPTZ", False, "CURRENT_TIMESTAMP"),
    ]
    assert found.primary_key == ("id",)
    assert (found.location, found.location_reference) == ("s3://b/${user_id}/", None)
    assert found.flush_policy == FlushPolicy(rows=5000, interval="1 minute")
    assert found.options == {"deleted_retention": "7d"}


def test_create_table_with_nothing_but_columns() -> None:
    found = one("CREATE TABLE t (timestamp TIMESTAMP, value DOUBLE)")
    assert found == CreateTable(text=found.text, kind=None, name=T, columns=found.columns, primary_key=(), options={})
    assert [column.name for column in found.columns] == ["timestamp", "value"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("", None), ("USER", TableKind.USER), ("shared", TableKind.SHARED), ("STREAM", TableKind.STREAM)],
)
def test_create_table_knows_the_kinds(kind: str, expected: TableKind | None) -> None:
    assert one(f"CREATE {kind} TABLE t (a INT)").kind is expected


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ("a INT PRIMARY KEY, b INT", ("a",)),
        ("a INT, b INT, PRIMARY KEY (b, A)", ("b", "a")),
        ("PRIMARY KEY (a), a INT, b INT", ("a",)),
        ("a INT PRIMARY /* two words */ KEY NOT NULL, b INT", ("a",)),
        ('"A" INT, b INT, PRIMARY KEY (a)', ("A",)),
    ],
)
def test_columns_of_the_primary_key_are_not_nullable(columns: str, key: tuple[str, ...]) -> None:
    found = one(f"CREATE TABLE t ({columns})")
    assert found.primary_key == key
    assert {column.name for column in found.columns if not column.nullable} == set(key)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("STRING", "TEXT"),
        ("TEXT", "TEXT"),
        ("VARCHAR(10)", "TEXT"),
        ("BIGINT", "BIGINT"),
        ("INT", "INT"),
        ("smallint", "SMALLINT"),
        ("BOOLEAN", "BOOLEAN"),
        ("DOUBLE", "DOUBLE"),
        ("DOUBLE PRECISION", "DOUBLE"),
        ("FLOAT", "REAL"),
        ("DECIMAL(10, 2)", "DECIMAL(10, 2)"),
        ("DATE", "DATE"),
        ("TIMESTAMP", "TIMESTAMP"),
        ("TIMESTAMPTZ", "TIMESTAMPTZ"),
        ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"),
        ("JSON", "JSON"),
        ("UUID", "UUID"),
        ("BYTES", "BLOB"),
        ("BLOB", "BLOB"),
        ("BINARY", "BLOB"),
        ("BYTEA", "BLOB"),
        ("ARRAY<STRING>", "TEXT[]"),
        ("INT[]", "INT[]"),
        ("INT[][]", "INT[][]"),
        ("MAP(TEXT, INT)", "MAP(TEXT, INT)"),
        ("STRUCT(a INT, b TEXT)", "STRUCT(a INT, b TEXT)"),
    ],
)
def test_types_are_read_by_sqlglot(written: str, expected: str) -> None:
    (column,) = one(f"CREATE TABLE t (a {written} NOT NULL)").columns
    assert isinstance(column.type, exp.DataType)
    assert sql(column.type) == expected
    assert not column.nullable


@pytest.mark.parametrize(
    ("clause", "fields"),
    [
        ("LOCATION 'p'", {"location": "p"}),
        ("LOCATION REFERENCE 's3-prod'", {"location_reference": "s3-prod"}),
        ("FLUSH POLICY ROWS 10000", {"flush_policy": FlushPolicy(rows=10000)}),
        ("FLUSH POLICY INTERVAL '5 minutes'", {"flush_policy": FlushPolicy(interval="5 minutes")}),
        ("FLUSH POLICY ROWS 1 INTERVAL '1s'", {"flush_policy": FlushPolicy(rows=1, interval="1s")}),
        ("FLUSH POLICY INTERVAL '1s' ROWS 1", {"flush_policy": FlushPolicy(rows=1, interval="1s")}),
        ("flush policy rows 1, interval '1s'", {"flush_policy": FlushPolicy(rows=1, interval="1s")}),
        ("WITH (a = 1) LOCATION 'p'", {"options": {"a": 1}, "location": "p"}),
        ("LOCATION 'p' FLUSH POLICY ROWS 1 WITH (a = 1)", {"location": "p", "flush_policy": FlushPolicy(rows=1)}),
    ],
)
def test_clauses_of_create_table_come_in_any_order(clause: str, fields: dict[str, object]) -> None:
    found = vars(one(f"CREATE TABLE t (a INT) {clause}"))
    assert {name: found[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'7d'", "7d"),
        ("'it''s'", "it's"),
        ("1", 1),
        ("-1", -1),
        ("2.5", 2.5),
        ("-1e3", -1000.0),
        ("1_000", 1000),
        ("TRUE", True),
        ("false", False),
        ("Off", "Off"),
        ("on", "on"),
    ],
)
def test_an_option_is_a_string_a_number_a_truth_or_a_word(written: str, value: object) -> None:
    (found,) = one(f"CREATE TABLE t (a INT) WITH (Some_Key = {written})").options.items()
    assert found == ("some_key", value)
    assert type(found[1]) is type(value)


def test_alter_table_takes_several_actions() -> None:
    found = one(
        "ALTER TABLE ns.t ADD COLUMN a INT NOT NULL DEFAULT 3, ADD b TEXT, DROP COLUMN c, DROP d, "
        "MODIFY COLUMN e TEXT, MODIFY f INT NULL DEFAULT NULL, MODIFY g INT NOT NULL, RENAME COLUMN h TO i, "
        "RENAME j TO \"K\", SET OPTIONS (x = 1), SET (y = 'z'), SET FLUSH POLICY ROWS 5, INTERVAL '1m', DROP l"
    )
    assert isinstance(found, AlterTable)
    assert found.name == NS_T
    integer, text = exp.DataType.build("INT"), exp.DataType.build("TEXT")
    assert found.actions == (
        AddColumn(column=ColumnDefinition(name="a", type=integer, nullable=False, default=exp.Literal.number(3))),
        AddColumn(column=ColumnDefinition(name="b", type=text)),
        DropColumn(name="c"),
        DropColumn(name="d"),
        ModifyColumn(name="e", type=text),
        ModifyColumn(name="f", type=integer, nullable=True, default=exp.Null()),
        ModifyColumn(name="g", type=integer, nullable=False),
        RenameColumn(name="h", new_name="i"),
        RenameColumn(name="j", new_name="K"),
        SetOptions(options={"x": 1}),
        SetOptions(options={"y": "z"}),
        SetFlushPolicy(flush_policy=FlushPolicy(rows=5, interval="1m")),
        DropColumn(name="l"),
    )


@pytest.mark.parametrize("kind", ["USER", "SHARED", "STREAM"])
def test_alter_table_accepts_the_kind(kind: str) -> None:
    assert one(f"ALTER {kind} TABLE t DROP a").actions == (DropColumn(name="a"),)


def test_insert_values() -> None:
    found = one("INSERT INTO ns.t (id, \"B b\") VALUES (1, 'x'), (?, DEFAULT), (-2, [1, now()])")
    assert isinstance(found, Insert)
    assert (found.name, found.columns, found.as_user) == (NS_T, ("id", "B b"), None)
    assert isinstance(found.source, exp.Values)
    rows = [row.expressions for row in found.source.expressions]
    assert [[sql(value) for value in row] for row in rows] == [["1", "'x'"], ["$1", "DEFAULT"], ["-2", "[1, NOW()]"]]
    assert [[is_default(value) for value in row] for row in rows] == [[False] * 2, [False, True], [False] * 2]


@pytest.mark.parametrize(
    "source",
    [
        "SELECT a FROM s",
        "SELECT a FROM s LIMIT 5",
        "SELECT 1 UNION ALL SELECT 2",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        "(SELECT 1)",
    ],
)
@pytest.mark.parametrize("columns", ["", "(a) "])
def test_insert_from_a_query(source: str, columns: str) -> None:
    found = one(f"INSERT INTO t {columns}{source}")
    assert isinstance(found.source, exp.Query)
    assert sql(found.source) == source
    assert found.columns == (("a",) if columns else ())


def test_a_column_called_default_in_quotes_is_not_the_default() -> None:
    found = one("INSERT INTO t VALUES (default, \"DEFAULT\", 'DEFAULT')")
    assert [is_default(value) for value in found.source.expressions[0].expressions] == [True, False, False]


def test_update() -> None:
    found = one("UPDATE ns.t AS x SET a = x.b + 1, \"C\" = DEFAULT, d = (SELECT 1) WHERE x.id = ? AND b IN ('a')")
    assert isinstance(found, Update)
    assert (found.name, found.alias, found.as_user) == (NS_T, "x", None)
    assert [(name, sql(value)) for name, value in found.assignments] == [
        ("a", "x.b + 1"),
        ("C", "DEFAULT"),
        ("d", "(SELECT 1)"),
    ]
    assert is_default(found.assignments[1][1])
    assert sql(found.where) == "x.id = $1 AND b IN ('a')"


@pytest.mark.parametrize(
    ("text", "alias", "where"),
    [
        ("DELETE FROM t", None, None),
        ("DELETE FROM t WHERE a = 1", None, "a = 1"),
        ("DELETE FROM t x WHERE x.a = 1", "x", "x.a = 1"),
        ('DELETE FROM t AS "X y"', "X y", None),
        ("DELETE FROM t AS user WHERE user.a", "user", '"user".a'),
    ],
)
def test_delete(text: str, alias: str | None, where: str | None) -> None:
    found = one(text)
    assert isinstance(found, Delete)
    assert (found.name, found.alias, found.as_user) == (T, alias, None)
    assert sql(found.where) in (where, where and where.replace('"', ""))


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t AS USER 'u 1' VALUES (1)",
        "INSERT INTO t AS USER 'u 1' (a) VALUES (1)",
        "INSERT INTO t (a) as user 'u 1' VALUES (1)",
        "INSERT INTO t (a) VALUES (1) AS USER 'u 1'",
        "INSERT INTO t AS USER 'u 1' SELECT a FROM s",
        "INSERT INTO t SELECT a FROM s AS USER 'u 1'",
        "INSERT INTO t SELECT a FROM s x AS USER 'u 1'",
        "INSERT INTO t SELECT a AS user FROM s AS USER 'u 1'",
        "UPDATE t AS USER 'u 1' SET a = 1",
        "UPDATE t AS USER 'u 1' SET a = 1 WHERE b",
        "UPDATE t x AS USER 'u 1' SET a = 1",
        "UPDATE t SET a = 1 AS USER 'u 1'",
        "UPDATE t SET a = 1 WHERE b = 'x' AS /* c */ USER 'u 1'",
        "DELETE FROM t AS USER 'u 1'",
        "DELETE FROM t AS USER 'u 1' WHERE a",
        "DELETE FROM t x WHERE a IN (SELECT b AS user FROM s) AS USER 'u 1'",
    ],
)
def test_as_user_is_accepted_in_its_positions(text: str) -> None:
    found = one(text)
    assert found.as_user == "u 1"
    assert found.name == T
    assert found.text == text
    assert getattr(found, "alias", None) in (None, "x")


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES ('AS USER ''x''')",
        "INSERT INTO t SELECT a AS user FROM s",
        "INSERT INTO t SELECT a FROM (SELECT 1 AS user) AS user",
        "UPDATE t SET a = (SELECT b AS user FROM s)",
        "DELETE FROM t WHERE a = 'AS USER' /* AS USER 'x' */",
    ],
)
def test_what_only_looks_like_as_user_is_not(text: str) -> None:
    assert one(text).as_user is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "SELECT * FROM ns.t WHERE a = 1 ORDER BY b LIMIT 5",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
        "SELECT 1 UNION ALL SELECT 2",
        "(SELECT 1) UNION (SELECT 2) ORDER BY 1",
        "((SELECT 1))",
        "SELECT a, COUNT(*) FROM t GROUP BY a HAVING COUNT(*) > 1",
        "SELECT 'x=1' = ANY(parameters) FROM system.jobs",
        'SELECT "A b", 🦆 FROM "N s"."T t" AS x',
    ],
)
def test_queries_are_kept_as_trees(text: str) -> None:
    found = one(text)
    assert isinstance(found, Select)
    assert isinstance(found.query, exp.Query)
    assert sql(found.query) == text


def test_values_is_a_query() -> None:
    found = one("VALUES (1, 'a'), (2, 'b')")
    assert isinstance(found.query, exp.Select)
    assert sql(found.query) == "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS _values"


@pytest.mark.parametrize("query", ["SELECT 1", "WITH x AS (SELECT 1) SELECT * FROM x", "(SELECT 1)"])
def test_explain_holds_its_query(query: str) -> None:
    found = one(f"EXPLAIN {query}")
    assert isinstance(found, Explain)
    assert sql(found.query) == query


@pytest.mark.parametrize(
    ("source", "alias", "expected"),
    [
        ("ns.t AT (VERSION => 3)", "", ("version", "3")),
        ("ns.t at (version => ?) x", "x", ("version", "$1")),
        ("ns.t AT (VERSION => $1) AS x", "x", ("version", "$1")),
        ("ns.t AT (TIMESTAMP => now() - INTERVAL 1 DAY) AS x", "x", ("timestamp", "NOW() - INTERVAL '1' DAY")),
        ("ns.t AT (TIMESTAMP => '2026-01-01')", "", ("timestamp", "'2026-01-01'")),
        ("ns.t AS x AT (VERSION => 3)", "x", ("version", "3")),
        ("ns.t AS at", "at", None),
        ("ns.t", "", None),
    ],
)
def test_time_travel_stands_on_the_table(source: str, alias: str, expected: tuple[str, str] | None) -> None:
    (table,) = one(f"SELECT * FROM {source}").query.find_all(exp.Table)
    found = time_travel(table)
    assert (found and (found[0], sql(found[1]))) == expected
    assert table.alias == alias
    assert table_name(table) == NS_T


def test_time_travel_is_kept_for_each_table_of_a_join() -> None:
    query = one("SELECT * FROM a AT (VERSION => 1) JOIN b AT (VERSION => 2) x ON TRUE, (SELECT * FROM c)").query
    found = {table.name: time_travel(table) for table in query.find_all(exp.Table)}
    assert {name: travel and sql(travel[1]) for name, travel in found.items()} == {"a": "1", "b": "2", "c": None}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT ?, ?::INT, [?] FROM t WHERE a = ?", ["1", "2", "3", "4"]),
        ("SELECT $1,$2, a + $10", ["1", "2", "10"]),
        ("INSERT INTO t VALUES (?, ?), (?, 1)", ["1", "2", "3"]),
        ("INSERT INTO t VALUES ($1,$2)", ["1", "2"]),
    ],
)
def test_parameters_are_numbered_placeholders_in_the_tree(text: str, names: list[str]) -> None:
    found = one(text)
    tree = found.source if isinstance(found, Insert) else found.query
    assert sorted(node.name for node in tree.find_all(exp.Placeholder)) == sorted(names)


def test_table_name_removes_quotes_and_refuses_what_is_no_table() -> None:
    (table,) = one('SELECT * FROM "A b"."c""d"').query.find_all(exp.Table)
    assert table_name(table) == TableName("A b", 'c"d')
    (table,) = one("SELECT * FROM generate_series(1, 2)").query.find_all(exp.Table)
    with pytest.raises(SqlSyntaxError, match="expected a table name of at most two parts"):
        table_name(table)
    with pytest.raises(SqlSyntaxError):
        table_name(exp.to_table("a.b.c"))


KNOWN = "SELECT, INSERT, UPDATE, DELETE, EXPLAIN, CREATE, ALTER, DROP, SHOW, DESCRIBE, FLUSH, BACKUP and RESTORE are"
CLAUSES = "expected NOT NULL, NULL, DEFAULT, PRIMARY KEY, ',' or ')'"
KEY_TWICE = "PRIMARY KEY is given twice; for a composite key use PRIMARY KEY (a, b)"
PARTS = "a table name has at most two parts; the session chooses the catalog"
WHOLE = "a whole number of at most 18 digits"


@pytest.mark.parametrize(
    "text",
    [
        "COPY t TO 'x'",
        "ATTACH 'x'",
        "DETACH x",
        "PRAGMA x",
        "SET a = 1",
        "RESET a",
        "USE ns",
        "CALL f()",
        "INSTALL x",
        "LOAD x",
        "TRUNCATE t",
        "MERGE INTO t USING s ON TRUE WHEN MATCHED THEN DELETE",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "GRANT SELECT ON t TO u",
        "REVOKE SELECT ON t FROM u",
        "VACUUM",
        "ANALYZE t",
        "EXPORT DATABASE 'x'",
        "PREPARE a AS SELECT 1",
        "EXECUTE a",
        "COMMENT ON TABLE t IS 'x'",
        "PIVOT t ON a",
        "SUMMARIZE t",
        "TABLE t",
        "FROM t",
        "KILLING 1",
        "hello world",
    ],
)
def test_other_statements_are_refused_by_their_first_word(text: str) -> None:
    refused(text, f"{text.split()[0].upper()} is not supported; {KNOWN}", 1, 1)


REFUSALS = [
    # The place is that of the whole text.
    ("SELECT 1;\n\n  SELEC 2", f"SELEC is not supported; {KNOWN}", 3, 3),
    (
        "-- ä 🦆\nSELECT 1;DROP x",
        "DROP X is not supported; expected NAMESPACE or [USER | SHARED | STREAM] TABLE",
        2,
        15,
    ),
    ("'x'", "expected a statement, found 'x'", 1, 1),
    (")", "')' does not close an open bracket", 1, 1),
    # CREATE
    (
        "CREATE VIEW v AS SELECT 1",
        "CREATE VIEW is not supported; expected NAMESPACE or [USER | SHARED | STREAM] TABLE",
        1,
        8,
    ),
    (
        "CREATE OR REPLACE TABLE t (a INT)",
        "CREATE OR REPLACE is not supported; expected NAMESPACE or [USER | SHARED | STREAM] TABLE",
        1,
        8,
    ),
    (
        "CREATE TEMP TABLE t (a INT)",
        "CREATE TEMP is not supported; expected NAMESPACE or [USER | SHARED | STREAM] TABLE",
        1,
        8,
    ),
    ("CREATE USER bob", "CREATE USER is not supported; expected NAMESPACE or [USER | SHARED | STREAM] TABLE", 1, 8),
    ("CREATE", f"expected NAMESPACE or [USER | SHARED | STREAM] TABLE, {END}", 1, 7),
    ("CREATE NAMESPACE", f"expected a namespace name, {END}", 1, 17),
    ("CREATE NAMESPACE a.b", "unexpected '.'", 1, 19),
    ('CREATE NAMESPACE ""', "a namespace name must not be empty", 1, 18),
    ("CREATE NAMESPACE a WITH (x = 1)", "expected OPTIONS, found '('", 1, 25),
    ("CREATE NAMESPACE a OPTIONS (x = 1, X = 2)", "option 'x' is given twice", 1, 36),
    ("CREATE TABLE a.b.c (x INT)", PARTS, 1, 17),
    ("CREATE TABLE t", f"a table needs at least one column; expected '(', {END}", 1, 15),
    ("CREATE TABLE t AS SELECT 1", "a table needs at least one column; expected '(', found 'AS'", 1, 16),
    ("CREATE TABLE t ()", "a table needs at least one column", 1, 16),
    ("CREATE TABLE t (PRIMARY KEY (a))", "a table needs at least one column", 1, 16),
    ("CREATE TABLE t (a)", "expected a type, found ')'", 1, 18),
    ("CREATE TABLE t (a FOO)", "type 'FOO' does not exist", 1, 19),
    ('CREATE TABLE t (a "INT")', 'type "INT" does not exist', 1, 19),
    ("CREATE TABLE t (a ARRAY<FOO>)", "expected '>', found 'FOO'", 1, 25),
    ("CREATE TABLE t (a UNKNOWN)", "type 'UNKNOWN' does not exist", 1, 19),
    ("CREATE TABLE t (a INT[)", "')' does not close an open bracket", 1, 23),
    ("CREATE TABLE t (a INT UNIQUE)", f"{CLAUSES}, found 'UNIQUE'", 1, 23),
    ("CREATE TABLE t (a INT, A TEXT)", "column 'A' is defined twice", 1, 24),
    ("CREATE TABLE t (a INT NOT NULL NULL)", "NULL and NOT NULL are both given", 1, 32),
    ("CREATE TABLE t (a INT NULL NOT NULL)", "NULL and NOT NULL are both given", 1, 28),
    ("CREATE TABLE t (a INT NULL NULL)", "NOT NULL or NULL is given twice", 1, 28),
    ("CREATE TABLE t (a INT DEFAULT 1 DEFAULT 2)", "DEFAULT is given twice", 1, 33),
    ("CREATE TABLE t (a INT DEFAULT)", "expected an expression, found ')'", 1, 30),
    ("CREATE TABLE t (a INT PRIMARY KEY PRIMARY KEY)", "PRIMARY KEY is given twice", 1, 35),
    ("CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (a))", KEY_TWICE, 1, 36),
    ("CREATE TABLE t (PRIMARY KEY (a), a INT PRIMARY KEY)", KEY_TWICE, 1, 40),
    ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", KEY_TWICE, 1, 42),
    ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "PRIMARY KEY names column 'b', which the table does not have", 1, 37),
    ("CREATE TABLE t (a INT, PRIMARY KEY (a, A))", "PRIMARY KEY names column 'A' twice", 1, 40),
    ("CREATE TABLE t (a INT, PRIMARY KEY ())", "expected a column name, found ')'", 1, 37),
    ("CREATE TABLE t (a INT NULL PRIMARY KEY)", "column 'a' is in the PRIMARY KEY and cannot be NULL", 1, 17),
    ("CREATE TABLE t (a INT) ENGINE = x", "expected LOCATION, FLUSH POLICY or WITH, found 'ENGINE'", 1, 24),
    ("CREATE TABLE t (a INT) LOCATION x", "expected a quoted path or REFERENCE after LOCATION, found 'x'", 1, 33),
    ("CREATE TABLE t (a INT) LOCATION REFERENCE", f"expected a quoted name after LOCATION REFERENCE, {END}", 1, 42),
    ("CREATE TABLE t (a INT) LOCATION 'x' LOCATION REFERENCE 'y'", "LOCATION is given twice", 1, 37),
    ("CREATE TABLE t (a INT) WITH (a = 1) WITH (b = 1)", "WITH is given twice", 1, 37),
    ("CREATE TABLE t (a INT) FLUSH POLICY", f"expected ROWS n or INTERVAL 't' after FLUSH POLICY, {END}", 1, 36),
    ("CREATE TABLE t (a INT) FLUSH POLICY ROWS 1 ROWS 2", "ROWS is given twice in FLUSH POLICY", 1, 44),
    ("CREATE TABLE t (a INT) FLUSH POLICY INTERVAL '1' INTERVAL '2'", "INTERVAL is given twice in FLUSH POLICY", 1, 50),
    ("CREATE TABLE t (a INT) FLUSH POLICY ROWS 1 FLUSH POLICY ROWS 1", "FLUSH POLICY is given twice", 1, 44),
    ("CREATE TABLE t (a INT) FLUSH POLICY ROWS -1", f"expected a number of rows, {WHOLE}, found '-'", 1, 42),
    ("CREATE TABLE t (a INT) FLUSH POLICY ROWS 1.5", f"expected a number of rows, {WHOLE}, found '1.5'", 1, 42),
    ("CREATE TABLE t (a INT) FLUSH POLICY INTERVAL 5", "expected a quoted interval, found '5'", 1, 46),
    ("CREATE TABLE t (a INT) WITH ()", "expected an option name, found ')'", 1, 30),
    ("CREATE TABLE t (a INT) WITH (a)", "expected '=', found ')'", 1, 31),
    (
        "CREATE TABLE t (a INT) WITH (a = NULL)",
        "expected a string, a number, TRUE, FALSE or a word, found 'NULL'",
        1,
        34,
    ),
    ("CREATE TABLE t (a INT) WITH (a = )", "expected a string, a number, TRUE, FALSE or a word, found ')'", 1, 34),
    ("CREATE TABLE t (a INT) WITH (a = -'x')", "expected a number, found 'x'", 1, 35),
    ("CREATE TABLE t (a INT) WITH (a = 1e999)", "expected a smaller number, found '1e999'", 1, 34),
    ("CREATE TABLE t (a INT) WITH (a = 7d)", "expected ')', found 'd'", 1, 35),
    # ALTER, DROP, SHOW, DESCRIBE, FLUSH, EXPLAIN
    ("ALTER VIEW v", "ALTER VIEW is not supported; expected NAMESPACE or TABLE", 1, 7),
    ("ALTER NAMESPACE a SET (x = 1)", "expected OPTIONS, found '('", 1, 23),
    ("ALTER TABLE t", f"expected ADD, DROP, MODIFY, RENAME or SET, {END}", 1, 14),
    ("ALTER TABLE t ADD a INT PRIMARY KEY", "a column of the PRIMARY KEY cannot be added later", 1, 25),
    ("ALTER TABLE t MODIFY a INT PRIMARY KEY", "the PRIMARY KEY of a table cannot be changed", 1, 28),
    ("ALTER TABLE t RENAME a", f"expected TO, {END}", 1, 23),
    ("ALTER TABLE t SET x", "expected OPTIONS (…) or FLUSH POLICY after SET, found 'x'", 1, 19),
    ("ALTER TABLE t DROP a,", f"expected an item of the list, {END}", 1, 22),
    ("ALTER TABLE t DROP a DROP b", "unexpected 'DROP'", 1, 22),
    ("DROP TABLE a.b.c", PARTS, 1, 15),
    ("DROP TABLE t CASCADE", "unexpected 'CASCADE'", 1, 14),
    (
        "SHOW DATABASES",
        "SHOW DATABASES is not supported; expected NAMESPACES, TABLES, TABLE STATS, MANIFEST CACHE or BACKUP",
        1,
        6,
    ),
    ("SHOW", f"expected NAMESPACES, TABLES, TABLE STATS, MANIFEST CACHE or BACKUP, {END}", 1, 5),
    ("SHOW TABLES IN", f"expected a namespace name, {END}", 1, 15),
    ("SHOW TABLES LIMIT x", f"expected a number after LIMIT, {WHOLE}, found 'x'", 1, 19),
    ("SHOW TABLES LIMIT -1", f"expected a number after LIMIT, {WHOLE}, found '-'", 1, 19),
    ("SHOW TABLES OFFSET 1", "unexpected 'OFFSET'", 1, 13),
    ("DESCRIBE", f"expected a table name, {END}", 1, 9),
    ("DESCRIBE SELECT 1", "expected a table name, found 'SELECT'", 1, 10),
    ("FLUSH ALL TABLES", "expected TABLE, found 'ALL'", 1, 7),
    ("EXPLAIN", f"expected SELECT, WITH or VALUES, {END}", 1, 8),
    ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN ANALYZE is not supported; expected SELECT", 1, 9),
    ("EXPLAIN DELETE FROM t", "EXPLAIN DELETE is not supported; expected SELECT", 1, 9),
    # INSERT
    ("INSERT OR REPLACE INTO t VALUES (1)", "INSERT OR REPLACE is not supported; expected INTO", 1, 8),
    ("INSERT OR IGNORE INTO t VALUES (1)", "INSERT OR IGNORE is not supported; expected INTO", 1, 8),
    ("INSERT OVERWRITE t VALUES (1)", "INSERT OVERWRITE is not supported; expected INTO", 1, 8),
    ("INSERT INTO t", f"expected columns, VALUES or SELECT, {END}", 1, 14),
    ("INSERT INTO t BY NAME SELECT 1", "BY is not supported in INSERT; expected columns, VALUES or SELECT", 1, 15),
    ("INSERT INTO t DEFAULT VALUES", "DEFAULT is not supported in INSERT; expected columns, VALUES or SELECT", 1, 15),
    ("INSERT INTO t AS x VALUES (1)", "AS is not supported in INSERT; expected columns, VALUES or SELECT", 1, 15),
    ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "ON CONFLICT is not supported in INSERT", 1, 26),
    ("INSERT INTO t SELECT * FROM s ON CONFLICT DO NOTHING", "ON CONFLICT is not supported in INSERT", 1, 31),
    ("INSERT INTO t VALUES (1) RETURNING a", "RETURNING is not supported in INSERT", 1, 26),
    ("INSERT INTO t SELECT * FROM s RETURNING a", "RETURNING is not supported in INSERT", 1, 31),
    ("INSERT INTO t VALUES (1) UNION SELECT 2", "unexpected 'UNION'", 1, 26),
    ("INSERT INTO t VALUES 1", "expected '(', found '1'", 1, 22),
    ("INSERT INTO t VALUES ()", "expected an expression, found ')'", 1, 23),
    ("INSERT INTO t VALUES (1,,2)", "expected an item of the list, found ','", 1, 25),
    ("INSERT INTO t VALUES (1,)", "expected an item of the list, found ')'", 1, 25),
    ("INSERT INTO t VALUES (1 AS a)", "expected ')', found 'AS'", 1, 25),
    ("INSERT INTO t VALUES (1 2)", "expected ')', found '2'", 1, 25),
    ("INSERT INTO t (a, a) VALUES (1, 2)", "column 'a' is named twice", 1, 19),
    ("INSERT INTO t (abc, ABC) VALUES (1, 2)", "column 'ABC' is named twice", 1, 21),
    ("INSERT INTO t () VALUES (1)", "expected a column name, found ')'", 1, 16),
    ("INSERT INTO a.b.c VALUES (1)", PARTS, 1, 16),
    ("INSERT INTO ? VALUES (1)", "expected a table name, found '?'", 1, 13),
    # UPDATE and DELETE
    ("UPDATE t", f"expected SET, {END}", 1, 9),
    ("UPDATE t SET a", f"expected '=' after column 'a', {END}", 1, 15),
    ("UPDATE t SET a =", f"expected an expression, {END}", 1, 17),
    ("UPDATE t SET a = 1, b = 2, A = 3", "column 'A' is assigned twice", 1, 28),
    ("UPDATE t SET t.a = 1", "expected '=' after column 't', found '.'", 1, 15),
    ("UPDATE t SET (a, b) = (1, 2)", "expected a column name, found '('", 1, 14),
    ("UPDATE t SET a = 1 FROM s", "FROM is not supported in UPDATE", 1, 20),
    ("UPDATE t SET a = 1 WHERE b ORDER BY c", "ORDER BY is not supported in UPDATE", 1, 28),
    ("UPDATE t SET a = 1 LIMIT 1", "LIMIT is not supported in UPDATE", 1, 20),
    ("UPDATE t SET a = 1 RETURNING a", "RETURNING is not supported in UPDATE", 1, 20),
    ("UPDATE t SET a = 1 WHERE", f"expected an expression, {END}", 1, 25),
    ("DELETE t", "expected FROM after DELETE, found 't'", 1, 8),
    ("DELETE FROM t USING s", "USING is not supported in DELETE", 1, 15),
    ("DELETE FROM t ORDER BY a", "ORDER BY is not supported in DELETE", 1, 15),
    ("DELETE FROM t LIMIT 1", "LIMIT is not supported in DELETE", 1, 15),
    ("DELETE FROM t RETURNING a", "RETURNING is not supported in DELETE", 1, 15),
    ("DELETE FROM t, s", "unexpected ','", 1, 14),
    ("WITH x AS (SELECT 1) DELETE FROM t", "expected SELECT, WITH or VALUES, found 'DELETE'", 1, 22),
    ("WITH x AS (SELECT 1) INSERT INTO t SELECT 1", "expected SELECT, WITH or VALUES, found 'INSERT'", 1, 22),
    ("WITH x AS (DELETE FROM t) SELECT 1", "expected SELECT, WITH or VALUES, found 'DELETE'", 1, 12),
    # AS USER
    ("INSERT INTO t AS USER 'a' VALUES (1) AS USER 'b'", "AS USER is given twice", 1, 38),
    ("INSERT INTO t AS USER '' VALUES (1)", "AS USER needs a user, found ''", 1, 23),
    ("INSERT INTO t AS USER ? VALUES (1)", "expected a quoted user after AS USER, found '?'", 1, 23),
    ("INSERT INTO t SELECT a AS USER 'u' FROM s", "AS USER must follow the table name or end the statement", 1, 24),
    ("UPDATE t SET a = 1 AS USER 'u' WHERE b", "AS USER must follow the table name or end the statement", 1, 20),
    ("DELETE FROM t WHERE a AS USER 'u' AND b", "AS USER must follow the table name or end the statement", 1, 23),
    ("SELECT * FROM t AS USER 'u'", "AS USER belongs to INSERT, UPDATE and DELETE", 1, 17),
    ("DELETE FROM t WHERE a IN (SELECT b AS USER 'u')", "expected ')', found 'u'", 1, 44),
    ("DELETE FROM t AS USER 'u' 'v'", "unexpected 'v'", 1, 27),
    # Queries
    ("SELECT", f"expected a column or an expression after SELECT, {END}", 1, 7),
    ("SELECT FROM t", "expected a column or an expression after SELECT, found 'FROM'", 1, 8),
    ("SELECT a,,b", "expected an item of the list, found ','", 1, 10),
    ("SELECT 1 +", f"something is missing before {END.removeprefix('found ')}", 1, 11),
    ("SELECT * FROM", f"expected table name, {END}", 1, 14),
    ("SELECT a b c", "unexpected 'c'", 1, 12),
    ("SELECT 1 SELECT 2", "unexpected 'SELECT'", 1, 10),
    ("(1 + 2)", "expected SELECT, WITH or VALUES, found '1'", 1, 2),
    ("SELECT (1", "'(' is never closed", 1, 8),
    ("SELECT 1)", "')' does not close an open bracket", 1, 9),
    ("SELECT (1]", "']' does not close an open bracket", 1, 10),
    ("SELECT CAST(a AS foo)", "expected TYPE after CAST, found 'foo'", 1, 18),
    ("SELECT * INTO x FROM t", "SELECT INTO is not supported; write INSERT INTO … SELECT", 1, 10),
    ("SELECT * FROM t FOR UPDATE", "FOR UPDATE is not supported in a query", 1, 17),
    ("SELECT * FROM t FOR SHARE", "FOR SHARE is not supported in a query", 1, 17),
    ("SELECT * FROM a.b.c", PARTS, 1, 15),
    ("SELECT * FROM a JOIN b.c.d ON TRUE", PARTS, 1, 22),
    ("SELECT * FROM 'file.csv'", "expected a table name, found 'file.csv'", 1, 15),
    ("SELECT * FROM ?", "expected a table name, found '?'", 1, 15),
    ("SELECT * FROM (DESCRIBE t)", "DESCRIBE is not supported in a query", 1, 16),
    ("SELECT * FROM (SUMMARIZE t)", "SUMMARIZE is not supported in a query", 1, 16),
    ("SELECT * FROM (PIVOT t ON a USING sum(b))", "PIVOT is not supported as a statement", 1, 16),
    ("SELECT * FROM ONLY t", "the clauses of table 'ONLY' are not supported", 1, 15),
    ("SELECT * FROM t VERSION AS OF 3", "unexpected 'AS'", 1, 25),
    ("SELECT * FROM t AT (BRANCH => 3)", "expected VERSION => … or TIMESTAMP => … after AT (, found 'BRANCH'", 1, 21),
    ("SELECT * FROM t AT (VERSION 3)", "expected '=>', found '3'", 1, 29),
    ("SELECT * FROM t AT (VERSION => )", "expected an expression, found ')'", 1, 32),
    ("SELECT * FROM t AT (VERSION => 1, 2)", "expected ')', found ','", 1, 33),
    # Parameters
    ("SELECT ?, $1", "parameters must be either ? or $1, not both", 1, 11),
    ("SELECT $1; SELECT ?", "parameters must be either ? or $1, not both", 1, 19),
    ("SELECT $name", "parameters must be ? or $1, found '$name'", 1, 8),
    ("SELECT $0", "parameters must be ? or $1, found '$0'", 1, 8),
    ("SELECT $ 1", "parameters must be ? or $1, found '$ 1'", 1, 8),
    ("SELECT $$a$$", "parameters must be ? or $1, found '$$'", 1, 8),
    ("SELECT @x", "parameters must be ? or $1, found '@x'", 1, 8),
    ("SELECT :name", "expected a column or an expression after SELECT, found ':'", 1, 8),
    # What ends too early
    ("SELECT 1;\nSELECT 'abc", "the string that starts here is never closed", 2, 8),
    ("SELECT 'it''s", "the string that starts here is never closed", 1, 8),
    ('SELECT "abc', "the quoted name that starts here is never closed", 1, 8),
    ("DELETE FROM t /* WHERE a = 1", "the comment that starts here is never closed", 1, 15),
    ("SELECT 1 /* a /* b */", "the comment that starts here is never closed", 1, 10),
    ("SELECT 'a\0b'", "the text contains a NUL character", 1, 10),
    ("SELECT '\ud800'", "the text contains half of a surrogate pair", 1, 9),
    ("SELECT 1 {# x #}", "expected '}', found '#'", 1, 11),
]


@pytest.mark.parametrize(("text", "sentence", "line", "column"), REFUSALS, ids=[ascii(text) for text, *_ in REFUSALS])
def test_a_mistake_is_one_sentence_with_its_place(text: str, sentence: str, line: int, column: int) -> None:
    refused(text, sentence, line, column)


def test_what_is_quoted_from_the_text_is_short_and_printable() -> None:
    assert str(refusal("SELECT 1 a " + "x" * 1000)) == f"unexpected '{'x' * 39}…' (line 1, column 12)"
    assert str(refusal("SELECT 1 a 'a\n\x1b[31mb'")) == "unexpected 'a��[31mb' (line 1, column 12)"
    for text in ("A\x1b", 'UPDATE t SET "\x1b\n" = 1, "\x1b\n" = 2', "x" * 1000, f"UPDATE t SET {'x' * 1000}"):
        assert str(refusal(text)).isprintable()
        assert len(str(refusal(text))) < 250


def test_the_longest_text_is_read_and_a_longer_one_is_not() -> None:
    text = "SELECT '" + "a" * (MAX_TEXT - 9) + "'"
    assert len(text) == MAX_TEXT
    assert len(one(text).query.expressions[0].name) == MAX_TEXT - 9
    refused(text + " ", f"the text has {MAX_TEXT + 1} characters, the limit is {MAX_TEXT}", 1, 1)


LONG = {
    "one string in VALUES": "INSERT INTO t VALUES ('" + "a" * 1_000_000 + "')",
    "escaped quotes": "SELECT '" + "''" * 500_000 + "'",
    "an open string": "SELECT '" + "''" * 500_000,
    "wide rows": "INSERT INTO t VALUES " + ",".join(["(1, 'some text of a row, not too short')"] * 25_000),
    "spaces": " " * 1_000_000,
    "comments": "-- x\n" * 200_000,
    "open comments": "/*" * 500_000,
    "one name": "SELECT " + "x" * 1_000_000,
    "one number": "SELECT " + "9" * 1_000_000,
    "emojis": "🦆" * 1_000_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_text_is_answered_in_seconds(text: str) -> None:
    started = time.process_time()
    try:
        parse(text)
    except SqlSyntaxError as error:
        assert len(str(error)) < 300
    assert time.process_time() - started < 20


def test_a_text_of_very_many_words_is_refused() -> None:
    assert str(refusal("," * 200_001)).startswith("the text has 200001 tokens, the limit is 200000")


DEEP = {
    "10,000 brackets": "SELECT " + "(" * 10_000 + "1" + ")" * 10_000,
    "10,000 open brackets": "(" * 10_000,
    "101 brackets": "SELECT " + "(" * 101 + "1" + ")" * 101,
    "100 brackets": "SELECT " + "(" * 100 + "1" + ")" * 100,
    "lists": "SELECT " + "[" * 10_000 + "]" * 10_000,
    "functions": "SELECT " + "f(" * 99 + "1" + ")" * 99,
    "subqueries": "SELECT " + "(SELECT " * 99 + "1" + ")" * 99,
    "NOT": "SELECT " + "NOT " * 5_000 + "1",
    "minus": "SELECT " + "- " * 5_000 + "1",
    "CASE": "SELECT " + "CASE WHEN " * 5_000 + "1",
    "a chain of operators": "SELECT 1" + "+1-1" * 5_000,
    "a chain of casts": "SELECT a" + "::INT" * 5_000,
    "a chain of arrows": "SELECT a" + " -> 'b'" * 5_000,
    "a chain of brackets": "SELECT a" + "[1]" * 5_000,
    "an array of arrays": "CREATE TABLE t (a INT" + "[]" * 5_000 + ")",
    "a condition": "DELETE FROM t WHERE a" + "+1-1" * 5_000,
    "a value": "UPDATE t SET a = 1" + "+1-1" * 5_000,
    "a default": "CREATE TABLE t (a INT DEFAULT 1" + "+1-1" * 5_000 + ")",
    "types or functions": "SELECT " + "INT(" * 40 + "1" + ")" * 40,
    "structs or functions": "SELECT " + "STRUCT(" * 40 + "1" + ")" * 40,
    "limits": "SELECT 1 LIMIT " + "(SELECT 1 LIMIT " * 40 + "1" + ")" * 40,
    "many statements": ("SELECT " + "INT(" * 12 + "1" + ")" * 12 + ";") * 1_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_refused_in_seconds(text: str) -> None:
    started = time.process_time()
    assert "nested too deeply" in str(refusal(text))
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 25 + "1" + ")" * 25,
        "SELECT " + "ARRAY[" * 25 + "1" + "]" * 25,
        "SELECT * FROM t WHERE a = 1" + " OR a = 1" * 900,
        "SELECT 1" + " + 1" * 900,
        "SELECT 'a'" + " || 'a'" * 900,
        "SELECT 1" + " UNION ALL SELECT 1" * 999,
    ],
    ids=lambda text: text[:30],
)
def test_what_is_accepted_can_be_written_and_copied(text: str) -> None:
    query = one(text).query
    assert query.copy().sql("duckdb")
    assert query.transform(lambda node: node) == query


def test_a_usual_insert_takes_far_less_than_a_millisecond() -> None:
    text = "INSERT INTO ns.t (a, b) VALUES (?, ?)"
    parse(text)
    best = min(_seconds(text) for _ in range(200))
    assert best < 0.001


def _seconds(text: str) -> float:
    started = time.perf_counter()
    parse(text)
    return time.perf_counter() - started


starts = st.sampled_from(
    [
        "SELECT ",
        "SELECT * FROM ",
        "SELECT * FROM t AT (",
        "WITH x AS (",
        "INSERT INTO t ",
        "INSERT INTO t VALUES (",
        "UPDATE t SET a = ",
        "DELETE FROM t ",
        "CREATE TABLE t (a ",
        "CREATE TABLE t (a INT) ",
        "ALTER TABLE t ",
        "SHOW ",
        "",
    ]
)


def _never_anything_else(text: str) -> None:
    try:
        statements = parse(text)
    except SqlSyntaxError as error:
        assert "\n" not in str(error)
        assert "\x1b" not in str(error)
        assert "sqlglot" not in str(error)
    else:
        assert all(isinstance(found, Statement) and found.text in text for found in statements)


@settings(max_examples=500, deadline=None)
@given(st.text())
def test_any_text_is_parsed_or_a_syntax_error(text: str) -> None:
    _never_anything_else(text)


@settings(max_examples=1500, deadline=None)
@given(starts, soup)
def test_any_soup_of_tokens_is_parsed_or_a_syntax_error(start: str, text: str) -> None:
    _never_anything_else(start + text)
