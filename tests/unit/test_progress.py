"""Bars say how far it is, not too often, and a terminal shows one at a time."""

import io
import time

import pytest

from lakefork.cli import jobs
from lakefork.progress import Bar, bar_text


def test_a_bar_shows_progress_and_always_the_end() -> None:
    said: list[str] = []
    bar = Bar(said.append, 1000)
    for done in range(0, 1001, 100):
        bar.reach(done, f"{done} of 1000")
    assert said == ["[....................]   0% 0 of 1000", "[####################] 100% 1000 of 1000"]


def test_the_remaining_time_is_estimated_from_progress() -> None:
    said: list[str] = []
    bar = Bar(said.append, 100, _started=time.monotonic() - 30)
    bar.reach(75, "75 of 100")
    assert said == [f"{bar_text(0.75)} 75 of 100, about 10 s left"]
    assert 2.4 < bar.per_second(75) <= 2.5


def test_nothing_to_do_is_all_done() -> None:
    said: list[str] = []
    Bar(said.append, 0).reach(0, "nothing")
    assert said == ["[####################] 100% nothing"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LINES = ["flush: begin\n", "flush: [##..]  50% a\n", "flush: [####] 100% b\n", '{"rows": 1}\n']


def test_a_terminal_shows_one_bar_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    jobs._relay_output(LINES, "flush")
    assert terminal.getvalue() == (
        "flush: begin\nflush: [##..]  50% a\r\033[Kflush: [####] 100% b\r\033[K" + '{"rows": 1}\n'
    )


def test_a_log_keeps_every_line_and_failures_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    jobs._relay_output([*LINES, "flush failed: no\n"], "flush")
    assert capsys.readouterr() == ("".join(LINES), "flush failed: no\n")
