"""What a worker process may use, set by the operating system: DuckDB's own limits do not hold for every function."""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

SLACK_MB = 64  # stacks of threads, and memory that is free but not given back
_PR_SET_PDEATHSIG = 1


def data_bytes() -> int:
    """Memory of the process that is its own and can be written to; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))


def limit_memory(megabytes: int) -> int:
    """From here on the process gets so much more than it has; returns the bytes that it has now.

    Not RLIMIT_AS: address space that is only reserved, and shared rows that are only mapped, would count.
    """
    baseline = data_bytes()
    if baseline:
        most = baseline + ((megabytes + SLACK_MB) << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return baseline


def limit_cpu(seconds: float) -> None:
    """The system ends the process once it has used so much more time; the engine does so earlier."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def give_back_memory() -> None:
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:
            trim(0)


def end_with_parent(parent: int) -> None:
    """The process ends when the one that forked it does; parent: its id before the fork."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
