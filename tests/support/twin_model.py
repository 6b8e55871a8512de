"""Twins: the same statements in two catalogs, once with and once without shortcuts, give the same answers and errors."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from lakefork.catalog.catalogs import create_catalog
from lakefork.catalog.connection import connect
from lakefork.errors import LakeforkError
from lakefork.model.tables import SEQ
from lakefork.sql.engine import Engine
from lakefork.sql.results import Rows
from lakefork.sql.session import Role
from support.sql_lake import SqlLake

ID = "01890a5d-ac96-774b-bcce-b302099a805"  # and one more digit
TABLES = {
    "own": "CREATE USER TABLE app.own (id BIGINT PRIMARY KEY, n INT, s TEXT DEFAULT 'none')",
    "common": "CREATE SHARED TABLE app.common (id INT PRIMARY KEY, n INT, s TEXT)",
    "named": "CREATE USER TABLE app.named (id TEXT PRIMARY KEY, n INT, s TEXT NOT NULL)",
    "pairs": "CREATE SHARED TABLE app.pairs (id INT, part TEXT, n SMALLINT, s TEXT, PRIMARY KEY (id, part))",
    "marked": "CREATE USER TABLE app.marked (id UUID PRIMARY KEY, n BIGINT, s TEXT)",
    "wide": "CREATE SHARED TABLE app.wide (id DATE PRIMARY KEY, n DOUBLE, s TEXT, a BOOLEAN, b SMALLINT, c REAL, "
    "d DECIMAL(12,3), e BLOB, f TIME, g TIMESTAMP, h TIMESTAMPTZ, i UUID, j JSON, k INT[], l TEXT[], m UUID[])",
}
WIDE = (
    "true, -3, 0.1, 12.345, '\\xAA\\x00'::BLOB, '12:34:56.789', '2024-02-29 01:02:03.456789', "
    f"'1999-12-31 23:59:59.5+05:30', '{ID}0', '{{\"a\": [1, null, \"é\"]}}', [1, NULL, 3], ['x', NULL], ['{ID}1', NULL]"
)
KEYS: dict[str, Callable[[int], str]] = {
    "own": str,
    "common": str,
    "named": lambda number: f"'key '' {number}'",
    "pairs": str,
    "marked": lambda number: f"'{ID}{number}'",
    "wide": lambda number: f"'2024-01-0{number + 1}'",
}
ODD_KEYS = (
    "NULL",
    "-1",
    "1.0",
    "'1'",
    "1 + 1",
    "99999999999999999999",
    "true",
    "DATE '2024-01-02'",
    "''",
    "CURRENT_USER()",
)
OUTPUTS = (
    "*", "id, n", "n AS m, id", "s", "id, _deleted", f"{SEQ}, id", "N", "t.n, t.id", "id, id", "count(*)", "n + 1", "nosuch",
    "* EXCLUDE (n)", "_updated", "x1, id",
)  # fmt: skip
VALUES = ("NULL", "1", "-7", "'text'", "'5'", "n", "n + 1", "n - 3", "32767 + n", "n + 2147483647", "coalesce(n, 0) + 1", "DEFAULT", "n / 0", "length(s)")  # fmt: skip
RULES: tuple[tuple[str, ...], ...] = (
    (),
    ("app.*",),
    ("app.own", "app.common.s = CURRENT_USER()", "app.pairs.n > 0"),
    ("app.own.s = 'none'", "app.wide.s LIKE 't%'"),
    ("other.*",),
)
USERS = st.sampled_from(["alice", "bob", "carol", None])
ROLES = st.sampled_from([Role.USER, Role.USER, Role.USER, Role.SERVICE, Role.ADMIN])
NUMBERS = st.integers(0, 4)


class TwinMachine(RuleBasedStateMachine):
    engines: tuple[Engine, Engine]
    dsn: str
    root: Path
    numbers = itertools.count()

    @initialize()
    def start(self) -> None:
        number = next(self.numbers)
        self.lakes = []
        for engine, letter in zip(self.engines, "ab", strict=True):
            name = f"twin{number}{letter}"
            with connect(self.dsn) as connection:
                catalog = create_catalog(connection, name, str(self.root / name))
            self.lakes.append(SqlLake(engine, self.dsn, catalog))
        self.added = 0
        self.both("CREATE NAMESPACE app; " + "; ".join(TABLES.values()))
        for user in ("alice", "bob", "carol"):
            self.both("INSERT INTO system.users (user_id, role, permissions) VALUES (?, 'user', ['app.*'])", user)

    def both(self, text: str, *parameters: Any, user: str | None = None, role: Role = Role.ADMIN) -> None:
        with_shortcuts, without = (_outcome(lake, text, parameters, user, role) for lake in self.lakes)
        assert with_shortcuts == without, (text, parameters, user, role)

    def look(self, table: str, key: int) -> None:
        """Statements whose shape comes again and again."""
        for output in ("*", "id, n"):
            self.both(f"SELECT {output} FROM app.{table} WHERE {_where(table, key)}", user="alice", role=Role.USER)

    @rule(table=st.sampled_from(sorted(TABLES)), keys=st.lists(NUMBERS, min_size=1, max_size=3), user=USERS, role=ROLES)
    def insert(self, table: str, keys: list[int], user: str | None, role: Role) -> None:
        part = ", 'p'" if table == "pairs" else ""
        rest = f", {WIDE}" if table == "wide" else ""
        names = "" if table == "wide" else f" (id{', part' if part else ''}, n, s)"
        rows = ", ".join(f"({KEYS[table](key)}{part}, {key}, 't{key}'{rest})" for key in keys)
        if table != "wide" or not self.added:
            self.both(f"INSERT INTO app.{table}{names} VALUES {rows}", user=user, role=role)
        self.look(table, keys[0])

    @rule(table=st.sampled_from(["own", "common", "named"]), key=NUMBERS, n=st.one_of(st.none(), NUMBERS), user=USERS)
    def insert_with_parameters(self, table: str, key: int, n: int | None, user: str | None) -> None:
        given = f"key ' {key}" if table == "named" else key
        self.both(f"INSERT INTO app.{table} (id, n, s) VALUES (?, ?, ?)", given, n, user, user=user, role=Role.SERVICE)

    @rule(
        table=st.sampled_from(sorted(TABLES)), key=NUMBERS, value=st.sampled_from(VALUES), user=USERS, role=ROLES,
        column=st.sampled_from(["n", "s", "id", "nosuch"]),
    )  # fmt: skip
    def update(self, table: str, key: int, value: str, user: str | None, role: Role, column: str) -> None:
        self.both(f"UPDATE app.{table} SET {column} = {value} WHERE {_where(table, key)}", user=user, role=role)
        self.look(table, key)

    @rule(
        table=st.sampled_from(["own", "common"]),
        key=NUMBERS,
        value=st.sampled_from([None, 5, -(2**31), 2**31, "x", 1.5]),
    )
    def update_with_parameters(self, table: str, key: int, value: object) -> None:
        self.both(f"UPDATE app.{table} SET n = ? WHERE id = ?", value, key, user="alice", role=Role.SERVICE)
        self.both(
            f"UPDATE app.{table} SET n = n + ?, s = ? WHERE id = ?", value, "new", key, user="alice", role=Role.SERVICE
        )

    @rule(table=st.sampled_from(sorted(TABLES)), key=NUMBERS, user=USERS, role=ROLES, acting=st.booleans())
    def delete(self, table: str, key: int, user: str | None, role: Role, *, acting: bool) -> None:
        as_user = " AS USER 'alice'" if acting else ""
        self.both(f"DELETE FROM app.{table}{as_user} WHERE {_where(table, key)}", user=user, role=role)
        self.look(table, key)

    @rule(table=st.sampled_from(sorted(TABLES)), owner=st.sampled_from(["alice", "bob"]), trim=st.booleans())
    def flush(self, table: str, owner: str, *, trim: bool) -> None:
        user = owner if "USER TABLE" in TABLES[table] else None
        for lake in self.lakes:
            lake.flush_by_hand(f"app.{table}", user, trim=trim)
        for key in range(3):
            self.look(table, key)

    @rule(table=st.sampled_from(sorted(TABLES)), default=st.sampled_from(["", " DEFAULT 3"]))
    def add_column(self, table: str, default: str) -> None:
        self.added += 1
        self.both(f"ALTER TABLE app.{table} ADD COLUMN x{self.added} INT{default}")

    @rule(
        action=st.sampled_from(
            ["MODIFY COLUMN n BIGINT", "MODIFY COLUMN id BIGINT", "RENAME COLUMN s TO n2", "RENAME COLUMN n2 TO s"]
        )
    )
    def alter(self, action: str) -> None:
        self.both(f"ALTER TABLE app.common {action}")

    @rule(user=st.sampled_from(["alice", "bob"]), rules=st.sampled_from(RULES))
    def give_rules(self, user: str, rules: tuple[str, ...]) -> None:
        self.both("UPDATE system.users SET permissions = ? WHERE user_id = ?", list(rules), user)

    @rule(table=st.sampled_from(["own", "common"]))
    def drop_and_create(self, table: str) -> None:
        self.both(f"DROP TABLE app.{table}; {TABLES[table]}")

    @rule(
        table=st.sampled_from(sorted(TABLES)), keys=st.lists(NUMBERS, min_size=1, max_size=3), user=USERS, role=ROLES,
        output=st.sampled_from(OUTPUTS),
    )  # fmt: skip
    def select(self, table: str, keys: list[int], user: str | None, role: Role, output: str) -> None:
        """More than once: the first time nothing is planned, the second time it is learnt."""
        where = _where(table, keys[0])
        if len(keys) > 1:
            part = " AND part = 'p'" if table == "pairs" else ""
            where = f"id IN ({', '.join(KEYS[table](key) for key in keys)}){part}"
        for _ in range(3):
            self.both(f"SELECT {output} FROM app.{table} t WHERE {where}", user=user, role=role)

    @rule(table=st.sampled_from(sorted(TABLES)), key=st.sampled_from(ODD_KEYS), user=USERS)
    def select_by_odd_key(self, table: str, key: str, user: str | None) -> None:
        for _ in range(2):
            self.both(f"SELECT * FROM app.{table} WHERE id = {key}", user=user, role=Role.USER)

    @rule(
        table=st.sampled_from(["own", "common"]), key=st.sampled_from([0, 1, "1", 2**70, None, True, 1.0]), user=USERS
    )
    def select_by_parameter(self, table: str, key: object, user: str | None) -> None:
        for text in (f"SELECT id, n FROM app.{table} WHERE id = ?", f"SELECT n FROM app.{table} WHERE $1 = id;"):
            for _ in range(2):
                self.both(text, key, user=user, role=Role.USER)

    @rule(table=st.sampled_from(sorted(TABLES)))
    def all_rows_are_the_same(self, table: str) -> None:
        self.both(f"SELECT * FROM app.{table} ORDER BY ALL")
        self.both(f"SELECT id, _deleted FROM app.{table} WHERE {SEQ} > 0")


def _where(table: str, key: int) -> str:
    return f"id = {KEYS[table](key)}" + (" AND part = 'p'" if table == "pairs" else "")


def _outcome(lake: SqlLake, text: str, parameters: tuple[Any, ...], user: str | None, role: Role) -> Any:
    try:
        results = lake.run(text, *parameters, user=user, role=role)
    except LakeforkError as error:
        return type(error), str(error)
    return [_comparable(result) for result in results]


def _comparable(result: Any) -> Any:
    """Two catalogs have no _seq in common."""
    if not isinstance(result, Rows):
        return result.as_json()
    kept = [place for place, name in enumerate(result.columns) if name not in (SEQ, "_updated")]
    rows = sorted(repr([row[place] for place in kept]) for row in result.rows)
    assert result.table.num_rows == len(rows)
    return result.statement, result.table.schema, rows


def run_twins(
    machine: type[TwinMachine], engines: tuple[Engine, Engine], dsn: str, root: Path, *, examples: int, steps: int
) -> None:
    machine.engines, machine.dsn, machine.root = engines, dsn, root
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=[Phase.generate],  # the steps of a failure are few enough to read
        ),
    )
