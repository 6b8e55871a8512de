"""Memory and processor time of a job: its driver, JVM and Python workers together."""

import contextlib

import psutil

from lakefork.catalog.jobs import Usage


class UsageMeter:
    """Sampled from time to time; remembers the peak, and the time of processes that have ended."""

    def __init__(self) -> None:
        me = psutil.Process()
        parent = me.parent()
        self._root = parent if parent is not None and "java" in parent.name() else me
        self._peak_bytes = 0
        self._cpu_by_pid: dict[int, float] = {}

    def sample(self) -> Usage:
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    total += process.memory_info().rss
                    times = process.cpu_times()
                    self._cpu_by_pid[process.pid] = times.user + times.system
        self._peak_bytes = max(self._peak_bytes, total)
        return Usage(self._peak_bytes // 2**20, round(sum(self._cpu_by_pid.values()), 2))
