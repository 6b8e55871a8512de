"""Waits for leases of other runs: those of a dead run expire, those of a living run may be released."""

import time
from collections.abc import Callable, Iterable, Mapping

from lakefork.catalog.leases import HeldLease
from lakefork.errors import LeaseHeldError

POLL_SECONDS = 0.5


class LeaseWait:
    """Limits the waiting of a run: for each holder as long as a dead run could hold its lease, or `seconds`."""

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
        """Waits until the leases are free. names: lease names, each with the text for people."""
        while held := self._find_held(names):
            for lease in held:
                self._check(lease, names[lease.name])
            time.sleep(POLL_SECONDS)

    def _check(self, lease: HeldLease, what: str) -> None:
        key = lease.name, lease.holder
        if key not in self._deadlines:
            seconds = min(lease.seconds_left, self._seconds) + POLL_SECONDS
            self._deadlines[key] = time.monotonic() + seconds
            self._progress(f"{what} is being worked on by {lease}: waiting for it, for {seconds:.0f} s at most")
        elif time.monotonic() > self._deadlines[key]:
            raise LeaseHeldError(
                f"{what} is being worked on by {lease}: wait for that run, or stop it, and run this again"
            )
