"""Starts the process that workers are forked from; imports nothing heavy, so that it can start first."""

import importlib.abc
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import lakefork

NOT_FOR_WORKERS = ("LAKEFORK_", "AIRFLOW_", "PG")


def leave_out_pandas() -> None:
    """Hides pandas, which pyarrow and DuckDB import if installed; that takes longer than most statements."""

    class NoPandas(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pandas":
                raise ImportError(name)

    sys.meta_path.insert(0, NoPandas())


class Zygote:
    """The process that workers are forked from; it starts with the first engine and ends with the process."""

    _current: ClassVar["Zygote | None"] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._has_forked = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_FOR_WORKERS)}
        library = str(Path(lakefork.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join([library, *filter(None, [environment.get("PYTHONPATH")])])
        # Library threads do not survive a fork; Arrow's own allocator reserves a gigabyte at once.
        environment |= {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lakefork.sql.workers.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @classmethod
    def start(cls) -> None:
        """Starts the process if it is not running; its imports take a while."""
        with cls._lock:
            cls._alive()

    @classmethod
    def fork(cls, config: str) -> tuple[socket.socket, socket.socket]:
        """Forks a worker, which may still be starting; returns its socket, and one that reports its end."""
        work, their_work = socket.socketpair()
        report, their_report = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with their_work, their_report, cls._lock:
            message, fds = [config.encode()], [their_work.fileno(), their_report.fileno()]
            try:
                socket.send_fds(cls._alive()._control, message, fds)
            except OSError:  # something else ended it
                cls._forget()
                socket.send_fds(cls._alive()._control, message, fds)
            cls._alive()._has_forked = True
        return work, report

    @classmethod
    def has_forked(cls) -> bool:
        """Tells whether this process has had a worker, so that the next one starts fast."""
        return cls._current is not None and cls._current._owner == os.getpid() and cls._current._has_forked

    @classmethod
    def _alive(cls) -> "Zygote":
        current = cls._current
        if current is not None and (current._owner != os.getpid() or current._process.poll() is not None):
            cls._forget()
        if cls._current is None:
            cls._current = Zygote()
        return cls._current

    @classmethod
    def _forget(cls) -> None:
        if cls._current is not None:
            cls._current._control.close()
            if cls._current._owner == os.getpid():
                cls._current._process.wait()  # without its control socket it ends
            cls._current = None
