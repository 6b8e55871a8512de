"""SQL at a terminal: the commands sql, load and schemas."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from lakefork.errors import InvalidInputError, LakeforkError, printable
from lakefork.progress import Bar
from lakefork.settings import load_settings
from lakefork.sql.engine import Engine, Outcome
from lakefork.sql.results import Affected, Result, Rows, dumps, json_value
from lakefork.sql.session import Role, Session

WIDEST = 60


def run_sql(
    dsn: str, session: dict[str, Any], text: str, say: Callable[[str], None], *, as_json: bool
) -> LakeforkError | None:
    """Runs a text and returns the error that ended it, if any; earlier statements stay executed.

    The answer is printed before anything is closed, so that interrupting the close does not lose it.
    """
    started = time.monotonic()
    with Engine(load_settings(), dsn) as engine:
        outcome = engine.run(_session(engine, session), text)
        milliseconds = round((time.monotonic() - started) * 1000)
        if as_json:
            say(dumps(_json(outcome, milliseconds)))
        elif outcome.results:
            say("\n".join(_text(result) for result in outcome.results))
    return outcome.error


def load_file(
    dsn: str, session: dict[str, Any], table: str, file: Path, as_user: str | None, say: Callable[[str], None]
) -> tuple[int, float]:
    """Loads a file atomically; returns the number of rows and the seconds it took."""
    rows = _read(file)
    bar, text = Bar(say, rows.num_rows), f"{rows.num_rows:,} rows of {file.name} into {table}"
    bar.reach(0, text)
    started = time.monotonic()
    with Engine(load_settings(), dsn) as engine:
        count = engine.load(_session(engine, session), table, rows, as_user=as_user)
    bar.reach(count, text)
    return count, time.monotonic() - started


def rewrite_schemas(dsn: str, catalog: str) -> int:
    """Rewrites the schema files; returns the number of namespaces."""
    with Engine(load_settings(), dsn) as engine:
        return engine.rewrite_schemas(Session(catalog, role=Role.ADMIN))


def _session(engine: Engine, given: dict[str, Any]) -> Session:
    user, role = given["user"], given["role"]
    found = Role.named(role) if role else engine.role_of(given["catalog"], user) if user else Role.ADMIN
    return Session(given["catalog"], user, found, given["namespace"])


def _read(file: Path) -> pa.Table:
    try:
        return pq.read_table(file) if file.suffix == ".parquet" else pyarrow.csv.read_csv(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None


def _json(outcome: Outcome, milliseconds: int) -> dict[str, Any]:
    results = [result.as_json() for result in outcome.results]
    if outcome.error:
        return {
            "status": "error",
            "results": results,
            "error": {"code": outcome.error.code, "message": str(outcome.error)},
        }
    return {"status": "success", "results": results, "execution_time_ms": milliseconds}


def _text(result: Result) -> str:
    if isinstance(result, Rows):
        return _table(result)
    if isinstance(result, Affected):
        return f"{result.affected_rows} row{'' if result.affected_rows == 1 else 's'} affected"
    return "done" if result.warning is None else f"done; warning: {result.warning}"


def _table(result: Rows) -> str:
    cells = [[_cell(title) for title in result.columns], *([_cell(value) for value in row] for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    count = len(result.rows)
    return "\n".join([*lines, f"({count} row{'' if count == 1 else 's'})"])


def _cell(value: Any) -> str:
    plain = json_value(value)
    text = "NULL" if plain is None else plain if isinstance(plain, str) else dumps(plain)
    text = printable(text[: WIDEST + 1])
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
