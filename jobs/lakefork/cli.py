"""The lakefork command. Heavy imports stay inside the commands, so that --help answers at once."""

import argparse
import json
import logging
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from lakefork import commands as handlers
from lakefork.errors import LakeforkError, StorageError, UnforeseenError, os_reason


def main() -> NoReturn:
    arguments = _parser().parse_args()
    logging.getLogger("lakefork").addHandler(logging.NullHandler())  # who types a command is told by its answer
    try:
        code = arguments.run(arguments)
    except LakeforkError as error:
        code = _fail(arguments, error.code, str(error))
    except KeyboardInterrupt:
        print("lakefork: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 141
    except Exception as error:
        translated = _translated(error)
        code = _fail(arguments, translated.code, str(translated))
    sys.exit(code or 0)


def _translated(error: Exception) -> LakeforkError:
    """One sentence for what nobody foresaw, too; how it came about is kept for those who mend it."""
    from lakefork.database_errors import DRIVER_ERRORS, database_error

    if isinstance(error, DRIVER_ERRORS):
        return database_error(error)
    if isinstance(error, OSError):
        return StorageError(f"a file cannot be read or written: {os_reason(error)}")
    with tempfile.NamedTemporaryFile("w", prefix="lakefork-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    return UnforeseenError(f"a mistake in Lakefork itself: please report it with {log.name}, which says where it is")


def _fail(arguments: argparse.Namespace, code: str, message: str) -> int:
    if handlers.wants_json(arguments):
        print(json.dumps({"status": "error", "results": [], "error": {"code": code, "message": message}}))
    else:
        print(f"lakefork: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakefork", description="A lakehouse for very many tenants; `make help` starts the whole stack."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    db = commands.add_parser("db", help="the embedded Postgres")
    db.add_argument("action", choices=["start", "stop", "url"], help="url prints the DSN, with its password")
    db.set_defaults(run=handlers.db)

    init = commands.add_parser("init", help="set up the catalog in an empty database, and a first catalog")
    init.add_argument("--catalog", default="main", help="name of the first catalog (default: main)")
    init.add_argument("--data-path", help="where its files go (default: data/<catalog> in LAKEFORK_HOME)")
    init.set_defaults(run=handlers.init)

    roots = commands.add_parser("roots", help="below which directories and S3 prefixes LOCATION may put tables")
    roots.add_argument("action", nargs="?", choices=["list", "add", "remove"], default="list", help="default: list")
    roots.add_argument("path", nargs="?", metavar="PATH", help="a directory that exists, or s3://bucket/…")
    roots.set_defaults(run=handlers.roots)

    status = commands.add_parser("status", help="catalogs, tables, waiting rows, files, bytes and last runs")
    status.set_defaults(run=handlers.status)

    sql = commands.add_parser(
        "sql", help="run SQL (docs/sql.md)", description="Runs statements, separated by semicolons."
    )
    _add_session_arguments(sql)
    sql.add_argument("--namespace", help="where tables without a namespace are looked up")
    sql.add_argument(
        "--format", choices=["table", "json"], default="table", help="json prints one object (default: table)"
    )
    sql.add_argument("text", nargs="?", metavar="SQL", help="without it, SQL is read from stdin")
    sql.set_defaults(run=handlers.sql)

    load = commands.add_parser("load", help="append the rows of a Parquet or CSV file to a table")
    _add_session_arguments(load)
    load.add_argument("--as-user", metavar="ID", help="whose rows they become, for service and admin")
    load.add_argument("table", metavar="NAMESPACE.TABLE")
    load.add_argument("file", type=Path, metavar="FILE", help="*.parquet, or *.csv with a header; columns go by name")
    load.set_defaults(run=handlers.load)

    schemas = commands.add_parser("schemas", help="write the schema files of a catalog again, from the catalog")
    schemas.add_argument("--catalog", default="main", help="default: main")
    schemas.set_defaults(run=handlers.schemas)

    run = commands.add_parser("run", help="run one job with spark-submit, without Airflow")
    job = run.add_argument("job", metavar="JOB", help=f"one of {', '.join(_job_names())}")
    job.suggestions = _job_names()  # type: ignore[attr-defined]  # for completion; a wrong one is refused with the list
    run.add_argument("--params", default="{}", metavar="JSON", help="the job's parameters as one JSON object")
    run.set_defaults(run=handlers.run)

    fork = commands.add_parser(
        "fork", help="make a catalog that begins with all that another one has, and shares its files"
    )
    fork.add_argument("parent", metavar="PARENT")
    fork.add_argument("name", metavar="NAME")
    fork.add_argument("--data-path", help="where its own files go (default: beside those of the parent)")
    fork.add_argument("--as-of", type=int, metavar="SNAPSHOT", help="what the parent's files held then (default: now)")
    fork.add_argument("--expires-after", metavar="T", help="drop it by itself after 2h, 7d, … (default: never)")
    fork.add_argument("--if-not-exists", action="store_true", help="fine if it is a fork of PARENT already")
    fork.set_defaults(run=handlers.fork)

    forks = commands.add_parser("forks", help="the tree of catalogs: where they come from and what they hold")
    forks.add_argument("catalog", nargs="?", metavar="CATALOG", help="only this one and what came from it")
    forks.add_argument(
        "--reclaim", action="store_true", help="what dropping CATALOG would free, and who keeps the rest"
    )
    forks.set_defaults(run=handlers.forks)

    drop = commands.add_parser(
        "drop-catalog", help="end a catalog; its files go when nothing needs them (retention_gc, file_cleanup)"
    )
    drop.add_argument("name", nargs="?", metavar="NAME")
    drop.add_argument("--prefix", help="instead: all forks whose names begin so …")
    drop.add_argument("--older-than", default="1s", metavar="T", help="… and that are older than 2h, 7d, …")
    drop.add_argument("--yes", action="store_true", help="do not ask before many are dropped")
    drop.set_defaults(run=handlers.drop_catalog)

    tag = commands.add_parser("tag", help="keep a snapshot of a catalog for ever, under a name")
    tag.add_argument("catalog", metavar="CATALOG")
    tag.add_argument("snapshot", type=int, metavar="SNAPSHOT")
    tag.add_argument("name", metavar="NAME")
    tag.set_defaults(run=handlers.tag)

    untag = commands.add_parser("untag", help="let a tagged snapshot go when its time is over")
    untag.add_argument("catalog", metavar="CATALOG")
    untag.add_argument("name", metavar="NAME")
    untag.set_defaults(run=handlers.untag)

    retention = commands.add_parser("retention", help="how long a catalog keeps snapshots; without options: as all do")
    retention.add_argument("catalog", metavar="CATALOG")
    retention.add_argument("--for", dest="retain_for", metavar="T", help="those younger than 12h, 7d, … are kept")
    retention.add_argument("--snapshots", type=int, metavar="N", help="the last N are kept")
    retention.set_defaults(run=handlers.retention)

    undelete = commands.add_parser("undelete", help="bring back files that file_cleanup put into the trash")
    undelete.add_argument(
        "--run", dest="run_id", required=True, metavar="RUN_ID", help="the run, as in system.deletions"
    )
    undelete.set_defaults(run=handlers.undelete)

    gc = commands.add_parser("gc", help="plans of retention and cleanup, what is kept and by whom, the last deletions")
    gc.set_defaults(run=handlers.gc)

    audits = commands.add_parser("audits", help="what the audits of flushes found, newest first")
    audits.add_argument("--run", dest="run_id", metavar="RUN_ID", help="only those of one run")
    audits.add_argument("--failed", action="store_true", help="only those that failed")
    audits.add_argument("--html", type=Path, metavar="FILE", help="write a page that needs no network")
    audits.set_defaults(run=handlers.audits)

    dump = commands.add_parser("dump", help="write the whole catalog into a new DuckDB file")
    dump.add_argument("file", type=Path, metavar="FILE")
    dump.set_defaults(run=handlers.dump)

    export = commands.add_parser("export", help="write one catalog into a new file that stock DuckDB attaches")
    export.add_argument("name", metavar="NAME", help="the catalog")
    export.add_argument("file", type=Path, metavar="FILE")
    export.set_defaults(run=handlers.export)

    client_role = commands.add_parser(
        "client-role", help="make a Postgres role by which stock DuckDB reads catalogs, and nothing else can be read"
    )
    client_role.add_argument("role", metavar="ROLE")
    client_role.add_argument("--catalog", metavar="NAME", help="the only one that it can read (default: any)")
    client_role.add_argument(
        "--connections", type=int, default=8, metavar="N", help="how many it can have at the same time (default: 8)"
    )
    client_role.add_argument("--drop", action="store_true", help="remove the role instead")
    client_role.set_defaults(run=handlers.client_role)

    completion = commands.add_parser("completion", help="a script that completes this command in your shell")
    completion.add_argument("shell", choices=["bash", "zsh"])
    completion.set_defaults(run=handlers.completion, parser=parser)

    airflow = commands.add_parser("airflow", help="let system.jobs know what your Airflow says")
    airflow.add_argument(
        "action", choices=["link"], help="after `airflow db migrate` in schema airflow of this database"
    )
    airflow.set_defaults(run=handlers.airflow)

    stack = commands.add_parser("stack", help="the laptop stack: Postgres and Airflow (make run, up, down)")
    stack.add_argument("action", choices=["run", "up", "down"])
    stack.add_argument("--no-history", action="store_true", help="up: start only, without runs for the demo")
    stack.set_defaults(run=handlers.stack)

    for name, command in commands.choices.items():
        if name != "completion":  # it prints a script
            command.add_argument("--json", action="store_true", help="print JSON, also when it fails")
    return parser


def _job_names() -> list[str]:
    """Without reading what they do, which takes longer than --help."""
    return sorted(path.stem for path in Path(__file__).parents[1].glob("*.py"))


def _add_session_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", default="main", help="default: main")
    parser.add_argument("--user", metavar="ID", help="who asks; needed for rows of USER tables")
    parser.add_argument(
        "--role",
        choices=["user", "service", "admin", "system"],
        help="default: that of the user in system.users, else user; without --user: admin",
    )


if __name__ == "__main__":
    main()
