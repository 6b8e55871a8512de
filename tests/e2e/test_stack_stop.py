"""The last test with the stack: stopping it."""

import json
import os
import signal

import psutil
import pytest

from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_down_leaves_nothing_behind_even_after_a_crash(stack: Stack) -> None:
    """Kills the parent of all Airflow processes with −9 first; what it leaves must be found all the same."""
    session = json.loads((stack.home / "airflow.session").read_text())["session"]
    os.kill(session, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(session)] if psutil.pid_exists(session) else [], timeout=5)
    assert len(stack.processes()) > 3, "the crash left orphans"
    down = stack.lakefork("stack", "down")
    assert down.returncode == 0, down.stderr
    assert stack.processes() == []
    again = stack.lakefork("stack", "down")
    assert (again.returncode, again.stdout) == (0, "nothing was running\n")
