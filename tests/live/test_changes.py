"""What subscribers are told: each change once, with the rows before and after it."""

import psycopg
import pytest

from lakefork.catalog.connection import connect
from live.conftest import Connect
from support.sql_lake import SqlLake

ADA = {"user": "ada"}


def test_changes_follow_the_initial_data(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v, n) VALUES (1, 'a', 1), (2, 'b', 2)", **ADA)
    ada = client()
    first = ada.subscribe("s", f"SELECT * FROM {ns}.t")
    assert [(row["id"], row["v"], row["_deleted"]) for row in first["rows"]] == [(1, "a", False), (2, "b", False)]
    assert (first["columns"], first["row_count"], first["page"]) == (["id", "v", "n", "_seq", "_deleted"], 2, 0)
    lake.run(f"INSERT INTO {ns}.t (id, v, n) VALUES (3, 'c', 3)", **ADA)
    lake.run(f"UPDATE {ns}.t SET v = 'B' WHERE id = 2", **ADA)
    lake.run(f"DELETE FROM {ns}.t WHERE id = 1", **ADA)
    inserted, updated, deleted = ada.change(), ada.change(), ada.change()
    assert (inserted["change_type"], inserted["new_values"]["id"], "old_values" in inserted) == ("INSERT", 3, False)
    assert (updated["change_type"], updated["old_values"]["v"], updated["new_values"]["v"]) == ("UPDATE", "b", "B")
    assert (deleted["change_type"], deleted["old_values"]["id"], deleted["old_values"]["_deleted"]) == (
        "DELETE",
        1,
        True,
    )
    assert "new_values" not in deleted
    assert {key: row["v"] for key, row in ada.copies["s"].items()} == {2: "B", 3: "c"}
    assert ada.quiet() == []


def test_users_are_told_of_their_own_rows_and_services_of_all(lake: SqlLake, ns: str, client: Connect) -> None:
    ada, bob, service = client("ada"), client("bob"), client("worker", "service")
    for one in (ada, bob):
        one.subscribe("s", f"SELECT id FROM {ns}.t")
    service.subscribe("s", f"SELECT _user_id, id FROM {ns}.t")
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (1)", user="ada")
    lake.run(f"INSERT INTO {ns}.t (id) VALUES (2)", user="bob")
    assert ada.change()["new_values"] == {"id": 1}
    assert bob.change()["new_values"] == {"id": 2}
    assert [service.change()["new_values"]["_user_id"] for _ in range(2)] == ["ada", "bob"]
    assert [*ada.quiet(), *bob.quiet(), *service.quiet()] == []


def test_scenario_23_a_late_commit_with_a_low_seq_is_delivered_once(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'first')", **ADA)
    ada = client()
    ada.subscribe("s", f"SELECT id, v FROM {ns}.t")
    hot = lake.find(f"{ns}.t").hot[0].qualified
    definition = lake.find(f"{ns}.t").definition
    with psycopg.connect(lake.dsn) as late:
        seq = lake.engine.resources.seqids.next()
        late.execute(
            f"INSERT INTO {hot} (catalog_id, _user_id, _seq, _deleted, c4, c5) VALUES (%s, 'ada', %s, false, 7, 'late')",
            (definition.catalog_id, int(seq)),
        )
        lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (8, 'early')", **ADA)
        assert ada.change()["new_values"]["v"] == "early"
        with connect(lake.dsn) as other, other.transaction(force_rollback=True):
            other.execute(
                f"INSERT INTO {hot} (catalog_id, _user_id, _seq, _deleted, c4) "
                f"SELECT catalog_id, _user_id, _seq + 1, false, 9 FROM {hot}"
            )
        late.commit()
    assert ada.change()["new_values"] == {"id": 7, "v": "late"}
    assert ada.quiet() == []


FILTERS = ["n > 5", "n + 0 > 5", "n BETWEEN 6 AND 9 OR v = 'x'", "NOT (n <= 5 OR n IS NULL)", "v LIKE 'zz%' OR n > 5"]


@pytest.mark.parametrize("condition", FILTERS)
def test_scenario_25_rows_move_into_the_filter_and_out_of_it(
    lake: SqlLake, ns: str, client: Connect, condition: str
) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v, n) VALUES (1, 'a', 1), (2, 'a', 7)", **ADA)
    ada = client()
    assert ada.subscribe("s", f"SELECT id, n FROM {ns}.t WHERE {condition}")["rows"] == [{"id": 2, "n": 7}]
    lake.run(f"UPDATE {ns}.t SET n = 8 WHERE id = 1", **ADA)  # into it
    lake.run(f"UPDATE {ns}.t SET n = 9 WHERE id = 1", **ADA)  # within it
    lake.run(f"UPDATE {ns}.t SET n = NULL WHERE id = 1", **ADA)  # out of it
    lake.run(f"UPDATE {ns}.t SET n = 2 WHERE id = 1", **ADA)  # outside
    lake.run(f"DELETE FROM {ns}.t WHERE id = 2", **ADA)
    lake.run(f"INSERT INTO {ns}.t (id, n) VALUES (2, 6)", **ADA)  # it comes back
    found = [ada.change() for _ in range(5)]
    assert [one["change_type"] for one in found] == ["INSERT", "UPDATE", "DELETE", "DELETE", "INSERT"]
    assert [one.get("new_values", {}).get("n") for one in found] == [8, 9, None, None, 6]
    assert [one.get("old_values", {}).get("_deleted") for one in found] == [None, None, False, True, None]
    assert ada.copies["s"] == {2: {"id": 2, "n": 6}}
    assert ada.quiet() == []


def test_scenario_25_ten_changes_between_two_looks(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, n) VALUES (1, 0)", **ADA)
    ada = client()
    ada.subscribe("s", f"SELECT id, n FROM {ns}.t")
    found = lake.find(f"{ns}.t")
    seqs = [int(one) for one in lake.engine.resources.seqids.next_many(10)]
    with connect(lake.dsn) as writer, writer.transaction():
        for n, seq in enumerate(seqs, 1):
            writer.execute(
                f"INSERT INTO {found.hot[0].qualified} (catalog_id, _user_id, _seq, _deleted, c4, c6) VALUES (%s, 'ada', %s, %s, 1, %s)",
                (found.definition.catalog_id, seq, n == 5, n),
            )
    told = [ada.change() for _ in range(10)]
    assert [one["change_type"] for one in told] == ["UPDATE"] * 4 + ["DELETE", "INSERT"] + ["UPDATE"] * 4
    assert [one.get("old_values", {}).get("n") for one in told] == [0, 1, 2, 3, 4, None, 6, 7, 8, 9]
    assert ada.copies["s"] == {1: {"id": 1, "n": 10}}


def test_old_values_come_from_files(lake: SqlLake, ns: str, client: Connect) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'cold'), (2, 'cold too')", **ADA)
    lake.flush_by_hand(f"{ns}.t", "ada")
    ada = client()
    assert len(ada.subscribe("s", f"SELECT id, v FROM {ns}.t")["rows"]) == 2
    lake.run(f"UPDATE {ns}.t SET v = 'hot' WHERE id = 1", **ADA)
    lake.run(f"DELETE FROM {ns}.t WHERE id = 2", **ADA)
    updated, deleted = ada.change(), ada.change()
    assert (updated["old_values"]["v"], updated["new_values"]["v"]) == ("cold", "hot")
    assert (deleted["change_type"], deleted["old_values"]["v"]) == ("DELETE", "cold too")


def test_a_condition_sees_no_rows_of_others(lake: SqlLake, ns: str, client: Connect) -> None:
    """It would fail on them, and its error would name their values."""
    ada, bob = client("ada"), client("bob")
    for one in (ada, bob):
        one.subscribe("s", f"SELECT id FROM {ns}.t WHERE CAST(v AS INT) > 5")
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, '7')", user="bob")
    assert bob.change()["new_values"] == {"id": 1}
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (2, 'secret')", user="bob")
    ended = bob.next()
    assert (ended["type"], "secret" in ended["reason"]) == ("ended", True)
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (3, '8')", user="ada")
    assert ada.change()["new_values"] == {"id": 3}
    assert ada.quiet() == []
