"""The lakefork command. Heavy imports stay inside the commands, so that --help is fast."""

import argparse
import json
import logging
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NoReturn

from lakefork import __version__
from lakefork.cli import backups
from lakefork.cli import commands as handlers
from lakefork.cli.copy import add_copy_parser
from lakefork.cli.upgrade import upgrade
from lakefork.errors import LakeforkError, StorageError, UnexpectedError, os_reason
from lakefork.resources import resource


def main() -> NoReturn:
    arguments = _parser().parse_args()
    logging.getLogger("lakefork").addHandler(logging.NullHandler())  # the answer of the command reports it
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
        translated = _as_one_sentence(error)
        code = _fail(arguments, translated.code, str(translated))
    sys.exit(code or 0)


def _as_one_sentence(error: Exception) -> LakeforkError:
    """Translates any error to one sentence; the traceback of an unexpected one goes to a file."""
    from lakefork.database_errors import DRIVER_ERRORS, database_error

    if isinstance(error, DRIVER_ERRORS):
        return database_error(error)
    if isinstance(error, OSError):
        return StorageError(f"a file cannot be read or written: {os_reason(error)}")
    with tempfile.NamedTemporaryFile("w", prefix="lakefork-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    return UnexpectedError(f"internal error: please report it with {log.name}, which has the traceback")


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
    parser.add_argument("--version", action="version", version=f"lakefork {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    db = commands.add_parser("db", help="the embedded Postgres")
    db.add_argument("action", choices=["start", "stop", "url"], help="url prints the DSN, with its password")
    db.set_defaults(run=handlers.db)

    init = commands.add_parser("init", help="apply the schema to an empty database and create the first catalog")
    init.add_argument("--catalog", default="main", help="name of the first catalog (default: main)")
    init.add_argument("--data-path", help="where its files go (default: data/<catalog> in LAKEFORK_HOME)")
    init.set_defaults(run=handlers.init)

    up = commands.add_parser("upgrade", help="upgrade the schema of an existing catalog to this version of Lakefork")
    up.add_argument("--dry-run", action="store_true", help="only print the steps")
    up.set_defaults(run=upgrade)

    roots = commands.add_parser("roots", help="directories and S3 prefixes below which LOCATION may place tables")
    roots.add_argument("action", nargs="?", choices=["list", "add", "remove"], default="list", help="default: list")
    roots.add_argument("path", nargs="?", metavar="PATH", help="an existing directory, or s3://bucket/…")
    roots.set_defaults(run=handlers.roots)

    status = commands.add_parser("status", help="catalogs, tables, waiting rows, files, bytes and last runs")
    status.set_defaults(run=handlers.status)

    sql = commands.add_parser(
        "sql", help="run SQL (docs/sql.md)", description="Runs statements, separated by semicolons."
    )
    _add_session_arguments(sql)
    sql.add_argument("--namespace", help="namespace of tables that are named without one")
    sql.add_argument(
        "--format", choices=["table", "json"], default="table", help="json prints one object (default: table)"
    )
    sql.add_argument("text", nargs="?", metavar="SQL", help="default: read from stdin")
    sql.set_defaults(run=handlers.sql)

    load = commands.add_parser("load", help="append the rows of a Parquet or CSV file to a table")
    _add_session_arguments(load)
    load.add_argument("--as-user", metavar="ID", help="the user who will own the rows, for service and admin")
    load.add_argument("table", metavar="NAMESPACE.TABLE")
    load.add_argument("file", type=Path, metavar="FILE", help="*.parquet, or *.csv with a header")
    load.set_defaults(run=handlers.load)

    schemas = commands.add_parser("schemas", help="rewrite the schema files of a catalog")
    schemas.add_argument("--catalog", default="main", help="default: main")
    schemas.set_defaults(run=handlers.schemas)

    run = commands.add_parser("run", help="run one job with spark-submit, without Airflow")
    job = run.add_argument("job", metavar="JOB", help=f"one of {', '.join(_job_names())}")
    job.suggestions = _job_names()  # type: ignore[attr-defined]  # for completion; a wrong one is refused with the list
    run.add_argument("--params", default="{}", metavar="JSON", help="the job's parameters as one JSON object")
    run.set_defaults(run=handlers.run)

    add_copy_parser(commands, handlers.copy)

    fork = commands.add_parser("fork", help="create a catalog with the contents of another one, sharing its files")
    fork.add_argument("parent", metavar="PARENT")
    fork.add_argument("name", metavar="NAME")
    fork.add_argument("--data-path", help="where its own files go (default: next to those of the parent)")
    fork.add_argument("--as-of", type=int, metavar="SNAPSHOT", help="a snapshot of the parent (default: now)")
    fork.add_argument("--expires-after", metavar="T", help="drop it automatically after 2h, 7d, … (default: never)")
    fork.add_argument("--if-not-exists", action="store_true", help="do nothing if it is already a fork of PARENT")
    fork.set_defaults(run=handlers.fork)

    forks = commands.add_parser("forks", help="show the tree of catalogs with their sizes")
    forks.add_argument("catalog", nargs="?", metavar="CATALOG", help="only this catalog and its descendants")
    forks.add_argument(
        "--reclaim", action="store_true", help="show what dropping CATALOG would free, and which catalogs keep the rest"
    )
    forks.set_defaults(run=handlers.forks)

    drop = commands.add_parser(
        "drop-catalog",
        help="drop a catalog; retention_gc and file_cleanup delete its files later",
    )
    drop.add_argument("name", nargs="?", metavar="NAME")
    drop.add_argument("--prefix", help="instead: all forks whose names begin with this …")
    drop.add_argument("--older-than", default="1s", metavar="T", help="… and that are older than 2h, 7d, …")
    drop.add_argument("--yes", action="store_true", help="do not ask before dropping many")
    drop.set_defaults(run=handlers.drop_catalog)

    tag = commands.add_parser("tag", help="tag a snapshot of a catalog, so that it never expires")
    tag.add_argument("catalog", metavar="CATALOG")
    tag.add_argument("snapshot", type=int, metavar="SNAPSHOT")
    tag.add_argument("name", metavar="NAME")
    tag.set_defaults(run=handlers.tag)

    untag = commands.add_parser("untag", help="remove a tag; its snapshot expires by policy")
    untag.add_argument("catalog", metavar="CATALOG")
    untag.add_argument("name", metavar="NAME")
    untag.set_defaults(run=handlers.untag)

    retention = commands.add_parser("retention", help="set how long a catalog keeps snapshots; without options: reset")
    retention.add_argument("catalog", metavar="CATALOG")
    retention.add_argument("--for", dest="retain_for", metavar="T", help="keep snapshots younger than 12h, 7d, …")
    retention.add_argument("--snapshots", type=int, metavar="N", help="keep the last N")
    retention.set_defaults(run=handlers.retention)

    undelete = commands.add_parser("undelete", help="restore files that file_cleanup moved to the trash")
    undelete.add_argument(
        "--run", dest="run_id", required=True, metavar="RUN_ID", help="the run, as in system.deletions"
    )
    undelete.set_defaults(run=handlers.undelete)

    gc = commands.add_parser("gc", help="show plans of retention and cleanup, tags and the last deletions")
    gc.set_defaults(run=handlers.gc)

    audits = commands.add_parser("audits", help="show results of audits, newest first")
    audits.add_argument("--run", dest="run_id", metavar="RUN_ID", help="only audits of one run")
    audits.add_argument("--failed", action="store_true", help="only failed")
    audits.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained HTML page")
    audits.set_defaults(run=handlers.audits)

    backup = commands.add_parser("backup", help="list backups, and verify that they are whole (docs/backup.md)")
    backup.add_argument("action", choices=["list", "verify"])
    backup.add_argument(
        "path", nargs="?", metavar="PATH", help="a place of backups, or PLACE/backups/ID (list: default all made here)"
    )
    backup.add_argument("--full", action="store_true", help="verify: read every file (the default)")
    backup.add_argument("--sample", metavar="SHARE", help="verify: read this share of the files, such as 10%%")
    backup.set_defaults(run=backups.backup)

    dump = commands.add_parser("dump", help="copy the catalog tables to a new DuckDB file")
    dump.add_argument("file", type=Path, metavar="FILE")
    dump.set_defaults(run=handlers.dump)

    export = commands.add_parser("export", help="write one catalog to a new file that stock DuckDB can attach")
    export.add_argument("name", metavar="NAME", help="the catalog")
    export.add_argument("file", type=Path, metavar="FILE")
    export.set_defaults(run=handlers.export)

    client_role = commands.add_parser(
        "client-role", help="create a Postgres role that can only read catalogs from stock DuckDB"
    )
    client_role.add_argument("role", metavar="ROLE")
    client_role.add_argument("--catalog", metavar="NAME", help="the only catalog that it can read (default: any)")
    client_role.add_argument(
        "--connections", type=int, default=8, metavar="N", help="connection limit of the role (default: 8)"
    )
    client_role.add_argument("--drop", action="store_true", help="drop the role instead")
    client_role.set_defaults(run=handlers.client_role)

    serve = commands.add_parser("serve", help="the API server: SQL over HTTP, and the console (docs/api.md)")
    serve.add_argument("--host", help="the address to listen on (default: setting server.host, 127.0.0.1)")
    serve.add_argument("--port", type=int, help="0: any free one (default: setting server.port, 8090)")
    serve.add_argument("--workers", type=int, metavar="N", help="processes (default: setting server.workers, 2)")
    serve.set_defaults(run=handlers.serve)

    token = commands.add_parser("token", help="bearer tokens for the API server")
    actions = token.add_subparsers(required=True, dest="action", metavar="ACTION")
    create = actions.add_parser("create", help="print a token, which is shown only now")
    create.add_argument("--catalog", required=True)
    create.add_argument("--user", required=True, metavar="ID")
    create.add_argument("--role", choices=["user", "service", "admin"], help="the highest (default: the user's)")
    create.add_argument("--expires-in", metavar="T", help="30m, 1h, 7d, … (default: setting server.token_expires_in)")
    actions.add_parser("list", help="tokens that were made, without the tokens themselves")
    revoke = actions.add_parser("revoke", help="end a token, or all of a user, within a second")
    revoke.add_argument("token", nargs="?", metavar="TOKEN", help="its id, or the token itself")
    revoke.add_argument("--catalog")
    revoke.add_argument("--user", metavar="ID")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print JSON, also for errors")
    token.set_defaults(run=handlers.token)

    completion = commands.add_parser("completion", help="print a completion script for your shell")
    completion.add_argument("shell", choices=["bash", "zsh"])
    completion.set_defaults(run=handlers.completion, parser=parser)

    airflow = commands.add_parser("airflow", help="connect system.jobs to your Airflow")
    airflow.add_argument(
        "action",
        choices=["link", "folders"],
        help="link: run it after `airflow db migrate` in schema airflow of this database; folders: of DAGs and plugin",
    )
    airflow.set_defaults(run=handlers.airflow)

    stack = commands.add_parser("stack", help="the laptop stack: Postgres and Airflow (make run, up, down)")
    stack.add_argument("action", choices=["run", "up", "down"])
    stack.add_argument("--no-history", action="store_true", help="up: do not run DAGs for the demo")
    stack.set_defaults(run=handlers.stack)

    for name, command in commands.choices.items():
        if name not in ("completion", "token"):  # whose output is a script, and whose actions have the option
            command.add_argument("--json", action="store_true", help="print JSON, also for errors")
    return parser


def _job_names() -> list[str]:
    """Lists the jobs without importing them, which would take longer than --help."""
    return sorted(path.stem for path in resource("jobs").glob("*.py"))


def _add_session_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", default="main", help="default: main")
    parser.add_argument("--user", metavar="ID", help="the user id; required for rows of USER tables")
    parser.add_argument(
        "--role",
        choices=["user", "service", "admin", "system"],
        help="default: the user's role in system.users, else user; without --user: admin",
    )


if __name__ == "__main__":
    main()
