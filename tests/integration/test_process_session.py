"""Processes of the laptop stack after a crash: found, told apart from zombies, and stopped."""

import os
import signal
from pathlib import Path

import pytest

from lakefork.embedded.processes import ProcessSession
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # as it is meant to


@pytest.fixture
def session(tmp_path: Path) -> ProcessSession:
    return ProcessSession(tmp_path / "session")


def start(session: ProcessSession, tmp_path: Path, script: str) -> int:
    return session.start(["sh", "-c", script], os.environ, tmp_path, tmp_path / "log").pid


def test_processes_left_by_a_killed_leader_are_stopped(session: ProcessSession, tmp_path: Path) -> None:
    leader = start(session, tmp_path, "sleep 100 & sleep 100")
    wait_until(lambda: len(session.processes()) == 3)
    assert session.has_leader()
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: len(session.processes()) == 2)
    assert not session.has_leader()
    assert session.stop() == 2
    assert session.processes() == []


def test_a_zombie_does_not_run(session: ProcessSession, tmp_path: Path) -> None:
    """A container without an init collects none of them."""
    leader = start(session, tmp_path, "exec sleep 100")
    assert session.has_leader()
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not session.has_leader())
    assert session.processes() == [] and session.stop() == 0
