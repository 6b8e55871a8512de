"""Who gets which changes of a look: subscribers by owner and distinct query."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakefork.errors import DatabaseError, LakeforkError
from lakefork.hot.changes import Position
from lakefork.hot.streams import StreamBuffer
from lakefork.live.messages import Compute, Event, Shape, satisfied_by
from lakefork.live.query import Plan
from lakefork.live.versions import TRIMMED, Change, Look
from lakefork.model.tables import TableKind
from lakefork.read.tables import FoundTable
from lakefork.sql.parse.statements import TableName
from lakefork.sql.session import Session


class Subscriber(Protocol):
    """Who gets the changes; the feed sets its plan when the table is altered."""

    session: Session
    plan: Plan


@dataclass(frozen=True)
class Delivery:
    """What a look brings a subscriber: events between two positions, or why there are none that can be told."""

    subscriber: Any
    since: Position
    until: Position
    events: Sequence[Event] = ()
    lost: str | None = None  # it must read everything again
    ended: str | None = None  # it cannot go on


@dataclass(eq=False)
class Shared:
    """The subscribers with one distinct query of one owner's rows."""

    shape: Shape
    subscribers: set[Any] = field(default_factory=set)


@dataclass(eq=False)
class SubscribedTable:
    name: TableName
    catalog: str
    found: FoundTable
    by_owner: dict[str | None, dict[str, Shared]] = field(default_factory=lambda: defaultdict(dict))
    _places: dict[Any, tuple[str | None, str]] = field(default_factory=dict)

    @property
    def postgres_names(self) -> list[str]:
        if self.found.definition.kind == TableKind.STREAM:
            return [StreamBuffer(self.found.definition).qualified]
        return [hot.qualified for hot in self.found.hot]

    def subscribers(self) -> list[Any]:
        return [one for shared in self.shared() for one in shared.subscribers]

    def shared(self) -> list[Shared]:
        return [shared for shapes in self.by_owner.values() for shared in shapes.values()]

    def add(self, subscriber: Subscriber) -> None:
        owner, key = subscriber.plan.owner, subscriber.plan.digest
        shapes = self.by_owner[owner]
        if key not in shapes:
            shapes[key] = Shared(Shape(subscriber.plan))
        shapes[key].subscribers.add(subscriber)
        self._places[subscriber] = owner, key

    def remove(self, subscriber: Any) -> None:
        owner, key = self._places.pop(subscriber, (None, ""))
        shared = self.by_owner.get(owner, {}).get(key)
        if shared is None:
            return
        shared.subscribers.discard(subscriber)
        if not shared.subscribers:
            del self.by_owner[owner][key]
            if not self.by_owner[owner]:
                del self.by_owner[owner]

    def clear(self) -> None:
        self.by_owner.clear()
        self._places.clear()


def fan_out(table: SubscribedTable, look: Look, since: Position, until: Position, compute: Compute) -> list[Delivery]:
    """Returns what a look means for each subscriber; one whose condition fails ends alone."""
    if look.lost is not None:
        return [Delivery(one, since, until, lost=look.lost) for one in table.subscribers()]
    deliveries = []
    shared_by_owner = _concerned(table, look)
    satisfied = _satisfied(look, compute, [shared for shared, _ in shared_by_owner])
    for shared, changes in shared_by_owner:
        try:
            rows = satisfied.get(shared.shape.plan.condition_key)
            if isinstance(rows, LakeforkError):
                raise rows
            events = shared.shape.events(changes, rows)
        except LakeforkError as error:
            deliveries += [Delivery(one, since, until, ended=str(error)) for one in shared.subscribers]
            continue
        if events:
            deliveries += [Delivery(one, since, until, events) for one in shared.subscribers]
    lost = look.lost_owners
    for owner, shapes in table.by_owner.items():
        if lost and (owner is None or owner in lost):
            subscribers = [one for shared in shapes.values() for one in shared.subscribers]
            deliveries += [Delivery(one, since, until, lost=TRIMMED) for one in subscribers]
    return deliveries


def _satisfied(look: Look, compute: Compute, concerned: Iterable[Shared]) -> dict[str, Any]:
    """Computes conditions that need a worker; one that fails fails alone."""
    shapes = [shared.shape for shared in concerned]
    try:
        return dict(satisfied_by(look, shapes, compute))
    except LakeforkError as error:
        if isinstance(error, DatabaseError):
            raise
    found: dict[str, Any] = {}
    for shape in shapes:
        try:
            found |= satisfied_by(look, [shape], compute)
        except LakeforkError as error:
            found[shape.plan.condition_key] = error
    return found


def _concerned(table: SubscribedTable, look: Look) -> list[tuple[Shared, Sequence[Change]]]:
    """Returns the distinct queries with the changes of the rows that they are about."""
    if not look.changes:
        return []
    by_owner: dict[str | None, list[Change]] = defaultdict(list)
    for change in look.changes:
        by_owner[change.row.owner].append(change)
    found: list[tuple[Shared, Sequence[Change]]] = []
    for owner, changes in by_owner.items():
        if owner is not None and owner in table.by_owner:
            found += [(shared, changes) for shared in table.by_owner[owner].values()]
    if None in table.by_owner:
        found += [(shared, look.changes) for shared in table.by_owner[None].values()]
    return found
