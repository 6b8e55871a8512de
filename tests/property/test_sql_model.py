"""Random statements give the rows that the model has, hot and in batches."""

from collections.abc import Callable
from pathlib import Path

from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from support.sql_model import SqlMachine, run_machine


def test_random_statements_match_the_model(dsn: str, data_dir: Path, make_settings: Callable[..., Settings]) -> None:
    with Engine(make_settings(), dsn) as engine:
        run_machine(SqlMachine, engine, dsn, data_dir, examples=25, steps=20)
