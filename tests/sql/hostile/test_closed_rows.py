"""Hostile SQL that reaches for rows that the user may not see."""

from typing import Any

import pytest

from lakefork.errors import LakeforkError, PermissionDeniedError
from support.sql_hostile import SECRET, refuse, survives
from support.sql_lake import SqlLake

FILTERED = [
    ("SELECT id FROM app.filtered", [(1,)]), ("SELECT count(*), max(v), min(n) FROM app.filtered", [(1, "own", 1)]), ("SELECT id FROM app.filtered WHERE owner = 'alice' OR true", [(1,)]),
    ("SELECT id FROM app.filtered WHERE id = 2", []), ("SELECT id FROM app.filtered WHERE id IN (1, 2, 3)", [(1,)]), ("SELECT owner, count(*) FROM app.filtered GROUP BY ALL HAVING count(*) > 0", [("mallory", 1)]),
    ("SELECT count(*) OVER (), lag(v) OVER (ORDER BY id), lead(v) OVER (ORDER BY id) FROM app.filtered", [(1, None, None)]), ("SELECT a.id, b.id FROM app.filtered a, app.filtered b", [(1, 1)]),
    ("SELECT o.id, f.v FROM app.open o LEFT JOIN app.filtered f ON f.id = o.id ORDER BY 1", [(1, "own"), (2, None)]), ("SELECT o.id, f.v FROM app.open o FULL JOIN app.filtered f USING (id) ORDER BY 1", [(1, "own"), (2, None)]),
    ("SELECT EXISTS (SELECT 1 FROM app.filtered WHERE owner = 'alice')", [(False,)]), ("SELECT id FROM app.open o WHERE NOT EXISTS (SELECT 1 FROM app.filtered f WHERE f.id = o.id)", [(2,)]),
    ("SELECT CASE WHEN v <> 'own' THEN error('seen') ELSE v END FROM app.filtered", [("own",)]), ("SELECT 10 // n FROM app.filtered", [(10,)]), ("SELECT CAST(v AS INT) FROM app.filtered WHERE v <> 'own'", []),
    ("SELECT id FROM app.filtered WHERE CASE WHEN v = 'TOPSECRET' THEN error('seen') ELSE true END", [(1,)]), ("WITH x AS (SELECT * FROM app.filtered) SELECT id FROM x", [(1,)]), ("SELECT id FROM (SELECT * FROM app.filtered) AS filtered", [(1,)]),
    ("SELECT id FROM app.filtered WHERE _deleted OR NOT _deleted", [(1,)]), ("SELECT id FROM app.filtered WHERE _seq > 0", [(1,)]), ("SELECT approx_count_distinct(v), list(v), string_agg(v, ',') FROM app.filtered", [(1, ["own"], "own")]),
    ("SELECT id FROM app.filtered AS app", [(1,)]), ("SELECT owner FROM app.filtered AS x (owner, id)", [(1,)]), ("SELECT id FROM (SELECT 'mallory' AS owner) s, app.filtered f WHERE f.id > 0", [(1,)]), ("SELECT count(*) FROM app.filtered TABLESAMPLE 100%", [(1,)]),
    ("SELECT id FROM app.filtered UNION SELECT id FROM app.filtered WHERE owner <> 'mallory'", [(1,)]), ("SELECT v FROM app.mine", [("own",)]), ("SELECT v FROM app.mine WHERE id = 2 OR id = 1", [("own",)]), ("SELECT a.v FROM app.mine a JOIN app.mine b ON true", [("own",)]),
    ("SELECT (SELECT string_agg(v, '') FROM app.mine)", [("own",)]), ("SELECT v FROM app.mine WHERE _seq > 0", [("own",)]), ("SELECT v FROM app.mine WHERE _deleted IS NOT NULL", [("own",)]), ("SELECT count(*) FROM (FROM app.mine)", [(1,)]),
    ("SELECT id FROM app.filtered AT (TIMESTAMP => now())", [(1,)]), ("SELECT v FROM app.mine AT (TIMESTAMP => now())", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FILTERED)
def test_row_filters_hold_in_every_query(lake: SqlLake, text: str, expected: list[Any]) -> None:
    assert lake.rows(text, user="mallory") == expected


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "text",
    ["SELECT _user_id FROM app.mine", "SELECT _USER_ID FROM app.mine", 'SELECT "_user_id" FROM app.mine', "SELECT m._user_id FROM app.mine m", "SELECT id FROM app.mine WHERE _user_id = 'alice'", "SELECT count(*) FROM app.mine GROUP BY _user_id",
     "SELECT id FROM app.mine ORDER BY _user_id", "SELECT * EXCLUDE (_user_id) FROM app.mine", "SELECT id FROM app.mine WHERE _user_id = 'mallory' OR true", "INSERT INTO app.mine (id, v, _user_id) VALUES (5, 'x', 'alice')", "UPDATE app.mine SET _user_id = 'alice'"],
)  # fmt: skip
def test_the_owner_of_a_row_is_not_for_users(lake: SqlLake, text: str) -> None:
    refuse(lake, text, user="mallory")


@pytest.mark.parametrize(
    "star",
    [
        "*",
        "m.*",
        "COLUMNS('.*')",
        "COLUMNS(*)",
        "m",
        "to_json(m)",
        "* EXCLUDE (id)",
        "* REPLACE (1 AS id)",
        "struct_pack(m)",
    ],
)
def test_no_form_of_star_shows_the_owner(lake: SqlLake, star: str) -> None:
    results = survives(lake, f"SELECT {star} FROM app.mine m", user="mallory")
    assert results is None or ("_user_id" not in str(results[0].as_json()) and SECRET not in str(results[0].as_json()))


def test_changes_do_not_reach_rows_of_others(lake: SqlLake) -> None:
    who: dict[str, Any] = {"user": "mallory"}
    before = lake.rows("SELECT _user_id, id, v, _seq FROM app.mine WHERE _user_id = 'alice' ORDER BY id")
    filtered = lake.rows("SELECT id, owner, v, n, _seq FROM app.filtered WHERE id > 1 ORDER BY id")
    for text in ("UPDATE app.mine SET v = v WHERE true", "UPDATE app.mine SET v = (SELECT max(v) FROM app.mine)", "UPDATE app.mine m SET v = 'own' WHERE id IN (SELECT id FROM app.mine)",
                 "DELETE FROM app.mine WHERE id = 2", "DELETE FROM app.mine WHERE id IN (2, 3) OR v = 'TOPSECRET'", "UPDATE app.filtered SET v = 'own'", "UPDATE app.filtered SET v = 'own' WHERE id IN (1, 2, 3)",
                 "DELETE FROM app.filtered WHERE id > 1", "DELETE FROM app.filtered WHERE owner IS NULL", "INSERT INTO app.mine SELECT id + 10, v FROM app.mine", "DELETE FROM app.mine WHERE id > 10",
                 "UPDATE app.mine SET v = 'own' WHERE _user_id = 'alice' OR true"):  # fmt: skip
        survives(lake, text, **who)
    assert lake.rows("SELECT _user_id, id, v, _seq FROM app.mine WHERE _user_id = 'alice' ORDER BY id") == before
    assert lake.rows("SELECT id, owner, v, n, _seq FROM app.filtered WHERE id > 1 ORDER BY id") == filtered
    assert lake.rows("SELECT id, v FROM app.mine", **who) == [(1, "own")]
    refuse(lake, "UPDATE app.filtered SET owner = 'alice'", kind=PermissionDeniedError, **who)
    refuse(lake, "INSERT INTO app.filtered VALUES (9, 'alice', 'x', 1)", kind=PermissionDeniedError, **who)
    refuse(lake, "UPDATE app.filtered SET v = error(v) WHERE v <> 'own' OR error(v) IS NULL", **who)


def test_explain_and_statistics_do_not_tell_of_rows_outside_the_filter(lake: SqlLake) -> None:
    lake.run(f"INSERT INTO app.filtered VALUES (40, 'alice', '{SECRET}', 0)")
    there = lake.rows("EXPLAIN SELECT * FROM app.filtered WHERE id = 40", user="mallory")
    missing = lake.rows("EXPLAIN SELECT * FROM app.filtered WHERE id = 41", user="mallory")
    lake.run("DELETE FROM app.filtered WHERE id = 40")
    assert [row[1] for row in there] == [row[1] for row in missing]


def test_an_error_in_a_row_filter_does_not_show_the_rows_that_it_hides(lake: SqlLake) -> None:
    for text in ("SELECT id FROM app.mixed", "UPDATE app.mixed SET code = code", "DELETE FROM app.mixed WHERE id = 2"):
        try:
            lake.run(text, user="mallory")
        except LakeforkError as error:
            assert SECRET not in str(error)
    assert lake.rows("SELECT id, code FROM app.mixed WHERE id = 2") == [(2, SECRET)]
