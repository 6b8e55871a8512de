"""The commands in the README work on the demo's data."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from lakefork.catalog.connection import connect
from lakefork.embedded.demo import CATALOG, FORK_PREFIX, change_demo, load_demo
from lakefork.settings import Settings
from lakefork.sql.engine import Engine
from lakefork.sql.results import Affected, Rows
from lakefork.sql.session import Session

README = Path(__file__).parents[2] / "README.md"


def test_every_statement_of_the_readme_gives_or_changes_rows(
    dsn: str, data_dir: Path, make_settings: Callable[..., Settings]
) -> None:
    settings = make_settings()
    with connect(dsn) as connection:
        load_demo(connection, dsn, settings, lambda _: None)
        connection.execute(
            "CALL ducklake_fork_catalog(%s, %s, %s)", (CATALOG, f"{FORK_PREFIX}1", str(data_dir / "fork"))
        )
    change_demo(dsn, settings, lambda _: None)
    lines = re.findall(r"^\S*lakefork sql (--catalog demo --user .*)", README.read_text(), re.MULTILINE)
    assert len(lines) == 2
    with Engine(settings, dsn) as engine:
        for line in lines:
            _, catalog, _, user, text = shlex.split(line, comments=True)
            for result in engine.execute(Session(catalog, user), text):
                count = len(result.rows) if isinstance(result, Rows) else 0
                assert count or (isinstance(result, Affected) and result.affected_rows == 1), result.statement
