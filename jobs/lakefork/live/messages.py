"""Messages about changes: what each distinct query makes of a look, as JSON that its subscriptions share."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakefork.hot.changes import row_names
from lakefork.live.conditions import Check, compiled
from lakefork.live.query import Plan
from lakefork.live.versions import Change, Look, Row
from lakefork.model.predicates import quoted
from lakefork.model.seqid import SeqId
from lakefork.model.tables import DELETED, SEQ, UPDATED, USER_ID, TableDefinition, TableKind
from lakefork.sql.results import json_value
from lakefork.sql.write.rows import typed_array

INSERT, UPDATE, DELETE = "INSERT", "UPDATE", "DELETE"
Compute = Callable[[Sequence[str], pa.Table], list[list[bool]]]
OWNER = "owner"  # the column with the user


@dataclass(eq=False, slots=True)
class Event:
    """A change as a query sees it. old, new: JSON objects; key: None for events of STREAM tables."""

    kind: str
    key: tuple[Any, ...] | None
    old: bytes | None
    new: bytes | None
    seq: int
    xid: int
    size: int = field(init=False)
    told: tuple[bytes, str, bytes] | None = field(init=False, default=None)  # the last message, for whom and after what

    def __post_init__(self) -> None:
        self.size = len(self.old or b"") + len(self.new or b"") + 160


@dataclass(eq=False)
class Shape:
    """A distinct query: what it selects, and its condition; however many subscriptions have it."""

    plan: Plan
    check: Check | None = None  # None: a worker computes it, unless there is no condition

    def __post_init__(self) -> None:
        if self.plan.condition is not None:
            self.check = compiled(self.plan.condition, self.plan.definition)
        places = {column.column_id: place for place, column in enumerate(self.plan.definition.columns)}
        self._outputs = [
            (_text(one.name) + b":", places.get(one.column_id or -1), one.system) for one in self.plan.outputs
        ]
        self._has_deleted = any(one.system == DELETED for one in self.plan.outputs)
        ids = {column.column_id for column in self.plan.definition.key}
        self._key = [place for place, column in enumerate(self.plan.definition.columns) if column.column_id in ids]

    @property
    def needs_worker(self) -> bool:
        return self.plan.condition is not None and self.check is None

    def events(self, changes: Iterable[Change], satisfied: Sequence[bool] | None) -> list[Event]:
        """Returns what changes of rows mean for the query; satisfied: by the place of a row, as a worker computed."""
        is_stream = self.plan.is_stream
        found = []
        for change in changes:
            row, old = change.row, change.old
            had = old is not None and not old.is_deleted and self._holds(old, satisfied)
            has = not row.is_deleted and self._holds(row, satisfied)
            if not had and not has:
                continue
            kind = UPDATE if had and has else INSERT if has else DELETE
            key = None if is_stream else (row.owner, *(row.values[place] for place in self._key))
            gone = row.is_deleted if kind == DELETE else None
            before = self._json(old, deleted=gone) if had and old is not None else None
            found.append(Event(kind, key, before, self._json(row) if has else None, row.seq, change.xid))
        return found

    def _holds(self, row: Row, satisfied: Sequence[bool] | None) -> bool:
        if self.plan.condition is None:
            return True
        return self.check(row.values) is True if self.check else bool(satisfied and satisfied[row.place])

    def _json(self, row: Row, deleted: bool | None = None) -> bytes:
        """Returns a row as a JSON object; deleted: what old_values._deleted says."""
        parts = []
        for name, place, system in self._outputs:
            if place is not None:
                parts.append(name + encoded(row.values[place]))
            elif system == DELETED and deleted is not None:
                parts.append(name + encoded(deleted))
            else:
                parts.append(name + encoded(_system_value(row, system)))
        if deleted is not None and not self._has_deleted:
            parts.append(b'"_deleted":' + encoded(deleted))
        return b"{" + b",".join(parts) + b"}"


def encoded(value: Any) -> bytes:
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")


def _system_value(row: Row, system: str | None) -> Any:
    if system == SEQ:
        return row.seq
    if system == DELETED:
        return row.is_deleted
    if system == UPDATED:
        return SeqId(row.seq).timestamp
    assert system == USER_ID  # noqa: S101 - there are no others
    return row.owner


def satisfied_by(look: Look, shapes: Iterable[Shape], compute: Compute) -> Mapping[str, Sequence[bool]]:
    """Returns by condition which rows of a look satisfy it, for those that a worker computes."""
    wanted: dict[str, Plan] = {}
    owners: dict[str, set[str | None]] = defaultdict(set)
    for shape in shapes:
        if shape.needs_worker:
            wanted[shape.plan.condition_key] = shape.plan
            owners[shape.plan.condition_key].add(shape.plan.owner)
    if not wanted or not look.rows:
        return {}
    tests = [_guarded(plan, owners[key]) for key, plan in wanted.items()]
    return dict(zip(wanted, compute(tests, _as_table(look)), strict=True))


def _guarded(plan: Plan, owners: set[str | None]) -> str:
    """Returns a condition that is computed for the rows of some owners that rules show: errors name values of rows."""
    guards = [] if None in owners else [f"{OWNER} IN ({', '.join(map(quoted, sorted(filter(None, owners))))})"]
    guards += [] if plan.row_filter is None else [f"({plan.row_filter.sql(dialect='duckdb')})"]
    own = "true" if plan.own_condition is None else plan.own_condition.sql(dialect="duckdb")
    return f"CASE WHEN {' AND '.join(['true', *guards])} THEN ({own}) ELSE false END"


def _as_table(look: Look) -> pa.Table:
    columns = look.definition.columns
    arrays = [typed_array([row.values[place] for row in look.rows], column) for place, column in enumerate(columns)]
    arrays.append(pa.array([row.owner for row in look.rows], pa.string()))
    return pa.Table.from_arrays(arrays, names=[*row_names(look.definition), OWNER])


def merged(events: Sequence[Event]) -> list[Event]:
    """Returns one event per key that has the effect of all of them, in the order of the last ones."""
    first: dict[tuple[Any, ...] | None, Event] = {}
    last: dict[tuple[Any, ...] | None, Event] = {}
    for event in events:
        first.setdefault(event.key, event)
        last.pop(event.key, None)
        last[event.key] = event
    found = []
    for key, end in last.items():
        start = first[key]
        if start is end:
            found.append(end)
            continue
        was_there, is_there = start.kind != INSERT, end.kind != DELETE
        if was_there or is_there:
            kind = UPDATE if was_there and is_there else INSERT if is_there else DELETE
            old = {UPDATE: start.old, DELETE: end.old, INSERT: None}[kind]
            found.append(Event(kind, key, old, end.new, end.seq, end.xid))
    return found


def is_keyed(definition: TableDefinition) -> bool:
    """Tells whether changes of one row can be merged."""
    return definition.kind != TableKind.STREAM


def change_message(subscription: bytes, event: Event, resume: str) -> bytes:
    """Returns the message; subscription: its id as JSON. Many clients use the same one."""
    if event.told is not None and event.told[:2] == (subscription, resume):
        return event.told[2]
    time = SeqId(event.seq).timestamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    parts = [
        b'{"type":"change","subscription_id":', subscription, b',"change_type":"', event.kind.encode(),
        b'","timestamp":"', time.encode(), b'"',
    ]  # fmt: skip
    if event.new is not None:
        parts += [b',"new_values":', event.new]
    if event.old is not None:
        parts += [b',"old_values":', event.old]
    message = b"".join([*parts, b',"resume":"', resume.encode(), b'"}'])
    event.told = subscription, resume, message
    return message
