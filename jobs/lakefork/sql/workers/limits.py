"""Limits of a worker process, set by the operating system, because not every function obeys DuckDB's limits."""

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

SLACK_MB = 64  # thread stacks, and free memory that is not returned
NICENESS = 10
_PR_SET_PDEATHSIG = 1


def data_bytes() -> int:
    """Returns the private writable memory of the process; 0 if the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData:"))


def limit_memory(megabytes: int) -> int:
    """Limits the process to a number of bytes above its current use; returns the current use.

    Not RLIMIT_AS, which would count reserved address space and mapped shared rows.
    """
    baseline = data_bytes()
    if baseline:
        most = baseline + ((megabytes + SLACK_MB) << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return baseline


def limit_cpu(seconds: float) -> None:
    """Has the system end the process after more processor time; normally the engine ends it earlier."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def yield_to_others() -> None:
    """Lets the engine and Postgres go first, so that short statements do not wait for the long one of somebody else."""
    os.nice(NICENESS)


def give_back_memory() -> None:
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim:
            trim(0)


def end_with_parent(parent: int) -> None:
    """Ends the process with the one that forked it; parent: its id before the fork."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
