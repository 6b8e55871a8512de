"""Counters of all worker processes in Prometheus' text format: each writes its own to a file that all can read."""

import json
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakefork.server.admission import Admission

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WRITE_SECONDS = 1.0
SQL_PATH = "/api/sql"
_HELP = {
    "requests_total": "counter Requests by status",
    "statements_total": "counter Statements by kind",
    "rows_total": "counter Rows that statements returned or changed",
    "sent_bytes_total": "counter Bytes of answers",
    "refused_tokens_total": "counter Requests without a good token",
    "running": "gauge Statements that run now",
    "waiting": "gauge Requests that wait for their turn",
    "workers": "gauge Worker processes",
    "sockets": "gauge Open WebSockets",
    "subscriptions": "gauge Live queries",
    "live_messages_total": "counter Messages sent over WebSockets",
    "live_bytes_total": "counter Bytes of these messages",
    "live_resyncs_total": "counter Live queries that had to read everything again",
    "live_look_seconds": "gauge Time that the last look at changes took, of all workers together",
}


class Metrics:
    """Of one worker process. Files of processes that are gone still count, but not what they did just then."""

    def __init__(self, directory: Path, admission: Admission) -> None:
        self._directory, self._admission = directory, admission
        self._file = directory / f"{os.getpid()}.json"
        self._counts: Counter[str] = Counter()
        self._written = 0.0
        self.live: Callable[[], tuple[dict[str, float], dict[str, float]]] = lambda: ({}, {})  # counts and gauges

    def count(self, path: str, status: int, seconds: float, statements: list[str], rows: int, sent_bytes: int) -> None:
        counts = self._counts
        counts[f'requests_total{{status="{status}"}}'] += 1
        counts["sent_bytes_total"] += sent_bytes
        if status == 401:
            counts["refused_tokens_total"] += 1
        if path == SQL_PATH:
            counts["rows_total"] += rows
            for kind in statements:
                counts[f'statements_total{{kind="{kind}"}}'] += 1
            place = bisect_left(BUCKETS, seconds)
            counts[f"bucket{place}"] += 1
            counts["seconds"] += seconds  # type: ignore[assignment]
        if time.monotonic() - self._written > WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        scratch = self._file.with_suffix(".new")
        with suppress(OSError):  # a full disk must not fail requests
            scratch.write_text(json.dumps(self._own()))
            scratch.replace(self._file)

    def _own(self) -> dict[str, dict[str, float]]:
        live_counts, live_gauges = self.live()
        gauges = {"running": self._admission.running, "waiting": self._admission.waiting, "workers": 1, **live_gauges}
        return {"counts": {**self._counts, **live_counts}, "gauges": gauges}

    def text(self) -> str:
        """Of all processes."""
        own = self._own()
        counts: Counter[str] = Counter(own["counts"])
        gauges: Counter[str] = Counter(own["gauges"])
        for file in set(self._directory.glob("*.json")) - {self._file}:
            found = json.loads(file.read_text())
            counts.update(found["counts"])
            if Path("/proc", file.stem).exists() or not Path("/proc/self").exists():
                gauges.update(found["gauges"])
        return _text(counts, gauges)


def _text(counts: Counter[str], gauges: Counter[str]) -> str:
    lines: list[str] = []
    values: dict[str, Any] = {**counts, **gauges}
    for name, about in _HELP.items():
        kind, _, said = about.partition(" ")
        lines += [f"# HELP lakefork_api_{name} {said}.", f"# TYPE lakefork_api_{name} {kind}"]
        own = sorted(key for key in values if key == name or key.startswith(name + "{"))
        lines += [f"lakefork_api_{key} {values[key]}" for key in own] or (
            [] if name in ("requests_total", "statements_total") else [f"lakefork_api_{name} 0"]
        )
    return "\n".join([*lines, *_histogram(counts)]) + "\n"


def _histogram(counts: Counter[str]) -> list[str]:
    name, total = "lakefork_api_sql_seconds", 0
    lines = [f"# HELP {name} Time that requests to {SQL_PATH} took.", f"# TYPE {name} histogram"]
    for place, bound in enumerate([*map(str, BUCKETS), "+Inf"]):
        total += counts[f"bucket{place}"]
        lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
    return [*lines, f"{name}_sum {counts['seconds']:g}", f"{name}_count {total}"]
