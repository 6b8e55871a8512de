"""Commands about rows: SQL, bulk loads, schema files."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from lakefork.cli.answers import database, draw_bar, respond, wants_json


def add_parsers(commands: Any) -> None:
    for add in (_add_sql, _add_load, _add_schemas):
        add(commands)


def _add_session_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", default="main", help="default: main")
    parser.add_argument("--user", metavar="ID", help="the user id; required for rows of USER tables")
    parser.add_argument(
        "--role",
        choices=["user", "service", "admin", "system"],
        help="default: the user's role in system.users, else user; without --user: admin",
    )


def _add_sql(commands: Any) -> None:
    parser = commands.add_parser(
        "sql", help="run SQL (docs/sql.md)", description="Runs statements, separated by semicolons."
    )
    _add_session_arguments(parser)
    parser.add_argument("--namespace", help="namespace of tables that are named without one")
    parser.add_argument(
        "--format", choices=["table", "json"], default="table", help="json prints one object (default: table)"
    )
    parser.add_argument("text", nargs="?", metavar="SQL", help="default: read from stdin")
    parser.set_defaults(run=sql)


def sql(arguments: argparse.Namespace) -> int:
    from lakefork.sql.workers.launch import Zygote, leave_out_pandas

    Zygote.start()  # first, because it imports as much as the engine does, in parallel
    leave_out_pandas()
    from lakefork.sql.console import run_sql

    text = sys.stdin.read() if arguments.text is None else arguments.text
    as_json = wants_json(arguments)
    error = run_sql(database(), _session(arguments), text, partial(print, flush=True), as_json=as_json)
    if error and not as_json:
        raise error
    return 1 if error else 0


def _add_load(commands: Any) -> None:
    parser = commands.add_parser("load", help="append the rows of a Parquet or CSV file to a table")
    _add_session_arguments(parser)
    parser.add_argument("--as-user", metavar="ID", help="the user who will own the rows, for service and admin")
    parser.add_argument("table", metavar="NAMESPACE.TABLE")
    parser.add_argument("file", type=Path, metavar="FILE", help="*.parquet, or *.csv with a header")
    parser.set_defaults(run=load)


def load(arguments: argparse.Namespace) -> int:
    from lakefork.sql.workers.launch import leave_out_pandas

    leave_out_pandas()
    from lakefork.sql.console import load_file

    rows, seconds = load_file(
        database(), _session(arguments), arguments.table, arguments.file, arguments.as_user, draw_bar
    )
    text = f"{rows} rows into {arguments.table} in {seconds:.1f} s"
    return respond(arguments, text, {"table": arguments.table, "rows": rows, "seconds": round(seconds, 3)})


def _add_schemas(commands: Any) -> None:
    parser = commands.add_parser("schemas", help="rewrite the schema files of a catalog")
    parser.add_argument("--catalog", default="main", help="default: main")
    parser.set_defaults(run=schemas)


def schemas(arguments: argparse.Namespace) -> int:
    from lakefork.sql.console import rewrite_schemas

    count = rewrite_schemas(database(), arguments.catalog)
    text = f"schema files of {count} namespaces were written"
    return respond(arguments, text, {"catalog": arguments.catalog, "namespaces": count})


def _session(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name, None) for name in ("catalog", "user", "role", "namespace")}
