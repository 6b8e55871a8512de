"""Statements by key give the same answers and errors with and without shortcuts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.points.shortcuts import Shortcut, Shortcuts
from lakefork.sql.session import Session
from support.twin_model import TwinMachine, run_twins


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that a shortcut answered from now on."""
    texts: list[str] = []
    execute = Shortcuts.execute

    def noting(shortcuts: Shortcuts, session: Session, shortcut: Shortcut) -> Any:
        found = execute(shortcuts, session, shortcut)
        if found is not None:
            texts.append(shortcut.shaped.source)
        return found

    monkeypatch.setattr(Shortcuts, "execute", noting)
    return texts


def test_shortcuts_change_no_answer(
    dsn: str, data_dir: Path, make_settings: Callable[..., Settings], answered: list[str]
) -> None:
    without = Settings().sql.model_copy(update={"shortcuts": False})
    with Engine(make_settings(), dsn) as fast, Engine(make_settings(sql=without), dsn) as general:
        run_twins(TwinMachine, (fast, general), dsn, data_dir, examples=8, steps=30)
    assert len(answered) > 30
