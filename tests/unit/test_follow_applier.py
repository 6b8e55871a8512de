"""Where the applier commits: only behind a whole transaction of the source, with its position."""

from types import SimpleNamespace
from typing import Any

from lakefork.transfer.follow import run
from lakefork.transfer.follow.changes import Piece, TableChange, rounds, runs
from lakefork.transfer.follow.pgoutput import Commit, Delete, Insert, Relation, RelationColumn, Update
from lakefork.transfer.follow.stream import Buffer

TABLE = Relation(1, "public", "t", "d", (RelationColumn("id", 23, -1, True), RelationColumn("v", 25, -1, False)))


class Recorder:
    """A target that writes down what it is told."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.committed: list[tuple[int, int]] = []  # changes and position

    def begin(self) -> None:
        assert not self.open

    def apply(self, changes: Any) -> None:
        self.open += changes

    def finish(self, before: int, position: int, committed_at: int | None) -> None:
        self.committed.append((len(self.open), position))
        self.open = []


def change(key: bytes = b"1") -> TableChange:
    return TableChange(TABLE, Insert(1, (key, b"x")))


def drain(pieces: list[Piece], wanted: int) -> tuple[Recorder, run.Applied]:
    buffer = Buffer()
    for piece in pieces:
        assert buffer.put(piece, 1)
    stream: Any = SimpleNamespace(buffer=buffer, durable=0)
    target = Recorder()
    context: Any = SimpleNamespace(check_leases=lambda: None)
    return target, run._Applier(context, stream, target, 10).drain(wanted, None)  # type: ignore[arg-type]


def test_whole_transactions_are_committed_together_with_the_last_position() -> None:
    target, applied = drain([Piece([change()], Commit(18, 20, 0)), Piece([change(), change()], Commit(28, 30, 0))], 30)
    assert target.committed == [(3, 30)] and (applied.transactions, applied.changes, applied.position) == (2, 3, 30)


def test_a_transaction_in_pieces_is_committed_when_it_is_complete() -> None:
    target, _ = drain([Piece([change()]), Piece([change()]), Piece([change()], Commit(18, 20, 0))], 20)
    assert target.committed == [(3, 20)]


def test_the_begin_of_a_later_transaction_is_not_committed() -> None:
    """The source was read as far as wanted, and more has arrived since."""
    target, applied = drain([Piece([change()], Commit(18, 20, 0)), Piece(reached=25), Piece([change()] * 3)], 25)
    assert target.committed == [(1, 20), (0, 25)] and target.open == [] and applied.changes == 1


def test_a_source_without_changes_for_us_moves_the_position() -> None:
    target, applied = drain([Piece(reached=50)], 40)
    assert target.committed == [(0, 50)] and applied.position == 50


def test_changes_that_meet_a_row_twice_are_not_one_statement() -> None:
    update = TableChange(TABLE, Update(1, None, (b"1", b"y"), False))
    moved = TableChange(TABLE, Update(1, (b"1", None), (b"2", b"y"), True))
    gone = TableChange(TABLE, Delete(1, (b"2", None), True))
    found = [
        (one.kind.__name__, len(one.changes)) for one in runs([change(), change(b"2"), update, update, moved, gone])
    ]
    assert found == [("Insert", 2), ("Update", 1), ("Update", 1), ("Update", 1), ("Delete", 1)]
    assert [len(some) for _, some in rounds([change(b"3"), update, moved, gone])] == [2, 1, 1]
