"""Measures memory and processor time of a job: driver, JVM and Python workers, and remote executors."""

import contextlib
from typing import Any

import psutil
from py4j.protocol import Py4JError

from lakefork.catalog.jobs import Usage

OF_EXECUTORS = ("ProcessTreeJVMRSSMemory", "ProcessTreePythonRSSMemory")


def _executors_bytes() -> int:
    """Returns the peak memory of executors on a cluster as last reported; a local driver is measured itself."""
    from pyspark import SparkContext

    spark: Any = SparkContext._active_spark_context
    if getattr(spark, "_jsc", None) is None or spark.master.startswith("local"):  # none, or not started yet
        return 0
    with contextlib.suppress(Py4JError, OSError):
        found = spark._jsc.sc().statusStore().executorList(False)
        executors = [found.apply(index) for index in range(found.size())]
        metrics = [one.peakMemoryMetrics() for one in executors if one.id() != "driver"]
        reported = [one.get() for one in metrics if one.isDefined()]
        return int(sum(one.getMetricValue(name) for one in reported for name in OF_EXECUTORS))
    return 0


class UsageMeter:
    """Samples usage; remembers the peak, and the processor time of processes that have ended."""

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
        self._peak_bytes = max(self._peak_bytes, total + _executors_bytes())
        return Usage(self._peak_bytes // 2**20, round(sum(self._cpu_by_pid.values()), 2))
