"""Waiting for what other runs hold: the lease of a dead one runs out, that of a living one may be given back."""

import time
from collections.abc import Callable, Iterable, Mapping

from lakefork.catalog.jobs import HeldLease
from lakefork.errors import LeaseHeldError

POLL_SECONDS = 0.5


class LeaseWait:
    """One per run: it waits for each holder as long as a dead one could still hold its lease, or `seconds`."""

    def __init__(
        self,
        find_held: Callable[[Iterable[str]], list[HeldLease]],
        progress: Callable[[str], None],
        seconds: float,
    ) -> None:
        self._find_held = find_held
        self._progress = progress
        self._seconds = seconds
        self._deadlines: dict[tuple[str, str], float] = {}

    def until_free(self, names: Mapping[str, str]) -> None:
        """names: the leases, and what people call it that they are about."""
        while held := self._find_held(names):
            for lease in held:
                self._look_at(lease, names[lease.name])
            time.sleep(POLL_SECONDS)

    def _look_at(self, lease: HeldLease, what: str) -> None:
        key = lease.name, lease.holder
        if key not in self._deadlines:
            seconds = min(lease.seconds_left, self._seconds) + POLL_SECONDS
            self._deadlines[key] = time.monotonic() + seconds
            self._progress(f"{what} is being worked on by {lease}: waiting for it, for {seconds:.0f} s at most")
        elif time.monotonic() > self._deadlines[key]:
            raise LeaseHeldError(
                f"{what} is being worked on by {lease}: wait for that run, or stop it, and run this again"
            )
