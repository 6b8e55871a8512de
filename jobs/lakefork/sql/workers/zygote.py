"""The process that workers are forked from: it has imported what they need, and never runs users' SQL itself.

Run as `python -m lakefork.sql.workers.zygote FD`; FD is the control socket, on which an engine asks for workers.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys

from lakefork.sql.workers.launch import leave_out_pandas

leave_out_pandas()
# Imported before the first fork, so that a new worker takes milliseconds.
import pyarrow.dataset  # noqa: E402, F401 - DuckDB wants it for the first relation

from lakefork.sql.workers import worker  # noqa: E402
from lakefork.sql.workers.limits import end_with_parent  # noqa: E402

MAX_REQUEST = 1 << 16


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wake_up, woken = socket.socketpair()
    for end in (wake_up, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reports: dict[int, socket.socket] = {}  # sockets for reporting the end of a worker, by process id
    while True:
        ready, _, _ = select.select([control, wake_up], [], [])
        if wake_up in ready:
            wake_up.recv(4096)
            _reap(reports)
        if control in ready and not _fork(control, wake_up, woken, reports):
            break
    for pid in reports:
        os.kill(pid, signal.SIGKILL)


def _fork(
    control: socket.socket, wake_up: socket.socket, woken: socket.socket, reports: dict[int, socket.socket]
) -> bool:
    """Forks a worker; returns False if the engine's process is gone."""
    text, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, 2)
    if not text:
        return False
    work, report = (socket.socket(fileno=fd) for fd in fds)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in (control, wake_up, woken, report, *reports.values()):
            other.close()
        end_with_parent(parent)
        status = 1
        try:
            worker.serve(work, json.loads(text))
            status = 0
        finally:
            os._exit(status)
    work.close()
    reports[pid] = report
    pidfds = _pidfds(pid)
    socket.send_fds(report, [str(pid).encode()], pidfds)
    for pidfd in pidfds:
        os.close(pidfd)
    return True


def _pidfds(pid: int) -> list[int]:
    """Returns pidfds, so that the engine kills this process and no later one with its id; empty if unsupported."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # not Linux, or forbidden in a container
        return []


def _reap(reports: dict[int, socket.socket]) -> None:
    while reports:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        with reports.pop(pid) as report:
            grown = usage.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            ended = {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "grown_kb": grown}
            with contextlib.suppress(OSError):  # the engine may be gone
                report.send(json.dumps(ended).encode())


if __name__ == "__main__":
    main()
