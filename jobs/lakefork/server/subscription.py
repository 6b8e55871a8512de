"""One subscription of a socket: what waits to be sent, merged where the client is slow."""

import json
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from lakefork.hot.changes import Cursor, Position
from lakefork.hot.snapshots import PgSnapshot
from lakefork.live.fan_out import Delivery
from lakefork.live.messages import Event, change_message, merged
from lakefork.live.query import Plan
from lakefork.live.registry import Entry
from lakefork.sql.session import Session

SLOW = "the client is too slow: changes were left out"


class State(Enum):
    READING = "reading"  # its initial data, while changes wait
    LIVE = "live"
    BEHIND = "behind"  # it must read everything again
    ENDED = "ended"


@dataclass(eq=False, slots=True)
class Run:
    """Events between two positions; where the first ones are merged, only the whole brings a client to `until`."""

    since: Position
    until: Position
    events: list[Event]
    is_merged: bool = False

    @property
    def size(self) -> int:
        return sum(event.size for event in self.events)


@dataclass(eq=False)
class Subscription:
    """For one event loop; the feed reads and sets only session and plan."""

    name: str  # as the client calls it
    session: Session
    plan: Plan
    last_rows: int | None = None
    resume: Cursor | None = None
    live_id: uuid.UUID = field(default_factory=uuid.uuid4)
    created_at: float = field(default_factory=time.time)
    state: State = State.READING
    reason: str | None = None  # of the last resync
    messages: int = 0
    sent_bytes: int = 0
    waiting_bytes: int = 0
    runs: deque[Run] = field(default_factory=deque)
    _seen: PgSnapshot | None = None  # the changes that the initial data has
    _again: str | None = None  # why the initial data must be read once more

    def __post_init__(self) -> None:
        self.label = json.dumps(self.name, ensure_ascii=False).encode("utf-8", "replace")

    @property
    def has_work(self) -> bool:
        return (self.state is State.LIVE and bool(self.runs)) or self.state is State.BEHIND

    def entry(self, text: str) -> Entry:
        catalog_id, table_id = self.plan.definition.ref
        return Entry(
            self.live_id, catalog_id, table_id, self.session.user or "", self.plan.owner, self.name, text,
            self.plan.column_ids, self.created_at,
        )  # fmt: skip

    def take(self, delivery: Delivery, limit: int) -> None:
        """Adds what a look brings; limit: of the bytes that may wait."""
        if self.state in (State.ENDED, State.BEHIND) or self._again is not None:
            return
        if delivery.lost is not None:
            self.fall_behind(delivery.lost)
            return
        events = self._unseen(delivery)
        if events:
            self._add(Run(delivery.since, delivery.until, events))
            if self.waiting_bytes > limit:
                self._shrink(limit)

    def fall_behind(self, reason: str) -> None:
        """What was not sent is dropped, and the client reads everything again, now or after what it reads now."""
        self.clear()
        if self.state is State.READING:
            self._again = reason
        elif self.state is State.LIVE:
            self.state, self.reason = State.BEHIND, reason

    def begin_reading(self) -> None:
        """From now on changes wait for the initial data."""
        self.clear()
        if self.state is State.ENDED:
            return
        self.state, self._seen, self._again = State.READING, None, None

    def begin_live(self, position: Position) -> None:
        """The client has the rows as of a position."""
        if self.state is not State.READING:
            return
        self._seen = position.seen
        waiting, self.state = list(self.runs), State.LIVE
        self.clear()
        if self._again is not None:
            self.fall_behind(self._again)
            return
        for run in waiting:
            events = [event for event in run.events if not position.seen.sees(event.xid)]
            if events:
                self._add(Run(run.since, run.until, events, run.is_merged))

    def clear(self) -> None:
        self.runs.clear()
        self.waiting_bytes = 0

    def pop(self) -> Run:
        run = self.runs.popleft()
        self.waiting_bytes -= run.size
        return run

    def encoded(self, run: Run) -> Iterator[bytes]:
        """Returns the messages of a run, each with the cursor to resume from after it."""
        last = len(run.events) - 1
        for place, event in enumerate(run.events):
            message = change_message(self.label, event, self._resume(run, event, is_last=place == last))
            self.messages += 1
            self.sent_bytes += len(message)
            yield message

    def cursor(self, position: Position) -> Cursor:
        catalog_id, table_id = self.plan.definition.ref
        return Cursor(position, catalog_id, table_id, self.plan.digest)

    def _resume(self, run: Run, event: Event, *, is_last: bool) -> str:
        if is_last:
            return str(self.cursor(run.until))
        cursor = self.cursor(run.since)
        if run.is_merged or self.plan.is_stream:
            return str(cursor)
        return str(Cursor(cursor.position, cursor.catalog_id, cursor.table_id, cursor.query, run.until.seen, event.seq))

    def _unseen(self, delivery: Delivery) -> list[Event]:
        events = list(delivery.events)
        if self._seen is None or self.state is not State.LIVE:
            return events
        if delivery.since.seen.includes(self._seen):
            self._seen = None
            return events
        return [event for event in events if not self._seen.sees(event.xid)]

    def _add(self, run: Run) -> None:
        self.runs.append(run)
        self.waiting_bytes += run.size

    def _shrink(self, limit: int) -> None:
        """Merges the changes of each row; if that is not enough, the client must read everything again."""
        if self.plan.is_stream or self.state is State.READING:
            self.fall_behind(SLOW)
            return
        runs = list(self.runs)
        events = merged([event for run in runs for event in run.events])
        self.clear()
        if events:
            self._add(Run(runs[0].since, runs[-1].until, events, is_merged=True))
        if self.waiting_bytes > limit // 2:
            self.fall_behind(SLOW)
