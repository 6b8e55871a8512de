"""Groups changes so that many of them are one statement. No I/O."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lakefork.transfer.follow.pgoutput import UNCHANGED, Commit, Delete, Insert, Relation, Truncate, Update, Values

RowChange = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of a row, with the table as it was then."""

    relation: Relation
    change: RowChange


@dataclass(frozen=True, slots=True)
class Truncation:
    relations: tuple[Relation, ...]
    truncate: Truncate


@dataclass(frozen=True, slots=True)
class Piece:
    """Changes of one transaction, in order. commit: with the last of them; reached: how far the source was read."""

    changes: Sequence[TableChange | Truncation] = ()
    commit: Commit | None = None
    reached: int | None = None
    size: int = 0


@dataclass(slots=True)
class Run:
    """Changes of one table that are one statement: none of them meets a row of another one.

    columns: places of the values that an update has; keys: of the rows as they are before the change.
    """

    relation: Relation
    kind: type[RowChange]
    columns: tuple[int, ...]
    changes: list[RowChange] = field(default_factory=list)
    keys: list[Values] = field(default_factory=list)


def key_places(relation: Relation) -> tuple[int, ...]:
    return tuple(place for place, column in enumerate(relation.columns) if column.is_key)


def old_key(change: Update | Delete, places: Sequence[int]) -> Values:
    """The key of the row before the change."""
    row = change.old if change.old is not None else change.new
    return tuple(row[place] for place in places)


def segments(changes: Sequence[TableChange | Truncation]) -> Iterator[Truncation | list[TableChange]]:
    """Truncations, and what lies between them."""
    between: list[TableChange] = []
    for one in changes:
        if isinstance(one, Truncation):
            if between:
                yield between
            yield one
            between = []
        else:
            between.append(one)
    if between:
        yield between


def runs(changes: Sequence[TableChange]) -> Iterator[Run]:
    """Tables one after the other, as no trigger fires; within a table the order of changes to a row stays."""
    by_table: dict[int, list[TableChange]] = {}
    for one in changes:
        by_table.setdefault(one.relation.oid, []).append(one)
    for of_table in by_table.values():
        yield from _runs_of_table(of_table)


def single_runs(changes: Sequence[TableChange]) -> Iterator[Run]:
    """One change each, in the source's order: tells which one fails."""
    for one in changes:
        yield from _runs_of_table([one])


def rounds(changes: Sequence[TableChange]) -> Iterator[tuple[Relation, list[RowChange]]]:
    """Changes of one table each, none of which meets a row of another one of its round."""
    by_table: dict[int, list[TableChange]] = {}
    for one in changes:
        by_table.setdefault(one.relation.oid, []).append(one)
    for of_table in by_table.values():
        relation, touched = of_table[0].relation, set[Values]()
        some: list[RowChange] = []
        for one in of_table:
            keys = _keys(one)
            if some and (one.relation is not relation or not touched.isdisjoint(keys)):
                yield relation, some
                relation, some, touched = one.relation, [], set()
            relation = one.relation
            some.append(one.change)
            touched.update(keys)
        if some:
            yield relation, some


def _keys(one: TableChange) -> tuple[Values, ...]:
    """The keys that a change is about, new rows included."""
    places = key_places(one.relation)
    if isinstance(one.change, Insert):
        return (tuple(one.change.new[place] for place in places),)
    _, _, keys = _shape(one.relation, one.change)
    return keys


def _runs_of_table(changes: Sequence[TableChange]) -> Iterator[Run]:
    run: Run | None = None
    touched: set[Values] = set()
    for one in changes:
        relation, change = one.relation, one.change
        columns, key, keys = _shape(relation, change)
        alone = relation.identity == "f" and not isinstance(change, Insert)
        if (
            run is None
            or alone
            or run.relation is not relation
            or run.kind is not type(change)
            or (run.columns != columns or not touched.isdisjoint(keys))
        ):
            if run is not None:
                yield run
            run, touched = Run(relation, type(change), columns), set()
        run.changes.append(change)
        run.keys.append(key)
        touched.update(keys)
    if run is not None:
        yield run


def _shape(relation: Relation, change: RowChange) -> tuple[tuple[int, ...], Values, tuple[Values, ...]]:
    """Which columns get values, the key before the change, and all keys that it is about."""
    if isinstance(change, Insert):
        return (), (), ()
    places = key_places(relation)
    key = old_key(change, places)
    if isinstance(change, Delete):
        return (), key, (key,)
    columns = tuple(place for place, value in enumerate(change.new) if value is not UNCHANGED)
    if change.old is None:
        return tuple(place for place in columns if place not in places), key, (key,)
    new = tuple(change.new[place] for place in places)
    return columns, key, (key, new)
