"""The lakefork command. Heavy imports stay inside the commands, so that --help answers at once."""

import argparse
import datetime
import getpass
import importlib.abc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from lakefork.errors import LakeforkError


def main() -> NoReturn:
    arguments = _parser().parse_args()
    try:
        code = arguments.run(arguments)
    except LakeforkError as error:
        print(f"lakefork: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("lakefork: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 141
    except Exception as error:
        if not type(error).__module__.startswith("psycopg"):
            raise
        print(f"lakefork: Postgres: {str(error).splitlines()[0]}", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakefork", description="A lakehouse for very many tenants; `make help` starts the whole stack."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    db = commands.add_parser("db", help="the embedded Postgres")
    db.add_argument("action", choices=["start", "stop", "url"], help="url prints the DSN, with its password")
    db.set_defaults(run=_db)

    init = commands.add_parser("init", help="set up the catalog in an empty database, and a first catalog")
    init.add_argument("--catalog", default="main", help="name of the first catalog (default: main)")
    init.add_argument("--data-path", help="where its files go (default: data/<catalog> in LAKEFORK_HOME)")
    _add_json(init)
    init.set_defaults(run=_init)

    status = commands.add_parser("status", help="catalogs, tables, waiting rows, files, bytes and last runs")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    status.set_defaults(run=_status)

    sql = commands.add_parser(
        "sql", help="run SQL (docs/sql.md)", description="Runs statements, separated by semicolons."
    )
    _add_session_arguments(sql)
    sql.add_argument("--namespace", help="where tables without a namespace are looked up")
    sql.add_argument(
        "--format", choices=["table", "json"], default="table", help="json prints one object (default: table)"
    )
    sql.add_argument("text", nargs="?", metavar="SQL", help="without it, SQL is read from stdin")
    sql.set_defaults(run=_sql)

    load = commands.add_parser("load", help="append the rows of a Parquet or CSV file to a table")
    _add_session_arguments(load)
    load.add_argument("--as-user", metavar="ID", help="whose rows they become, for service and admin")
    load.add_argument("table", metavar="NAMESPACE.TABLE")
    load.add_argument("file", type=Path, metavar="FILE", help="*.parquet, or *.csv with a header; columns go by name")
    load.set_defaults(run=_load)

    schemas = commands.add_parser("schemas", help="write the schema files of a catalog again, from the catalog")
    schemas.add_argument("--catalog", default="main", help="default: main")
    schemas.set_defaults(run=_schemas)

    run = commands.add_parser("run", help="run one job with spark-submit, without Airflow")
    job = run.add_argument("job", metavar="JOB", help=f"one of {', '.join(_job_names())}")
    job.suggestions = _job_names()  # type: ignore[attr-defined]  # for completion; a wrong one is refused with the list
    run.add_argument("--params", default="{}", metavar="JSON", help="the job's parameters as one JSON object")
    run.set_defaults(run=_run)

    fork = commands.add_parser(
        "fork", help="make a catalog that begins with all that another one has, and shares its files"
    )
    fork.add_argument("parent", metavar="PARENT")
    fork.add_argument("name", metavar="NAME")
    fork.add_argument("--data-path", help="where its own files go (default: beside those of the parent)")
    fork.add_argument("--as-of", type=int, metavar="SNAPSHOT", help="what the parent's files held then (default: now)")
    fork.add_argument("--expires-after", metavar="T", help="drop it by itself after 2h, 7d, … (default: never)")
    fork.add_argument("--if-not-exists", action="store_true", help="fine if it is a fork of PARENT already")
    _add_json(fork)
    fork.set_defaults(run=_fork)

    forks = commands.add_parser("forks", help="the tree of catalogs: where they come from and what they hold")
    forks.add_argument("catalog", nargs="?", metavar="CATALOG", help="only this one and what came from it")
    forks.add_argument(
        "--reclaim", action="store_true", help="what dropping CATALOG would free, and who keeps the rest"
    )
    _add_json(forks)
    forks.set_defaults(run=_forks)

    drop = commands.add_parser(
        "drop-catalog", help="end a catalog; its files go when nothing needs them (retention_gc, file_cleanup)"
    )
    drop.add_argument("name", nargs="?", metavar="NAME")
    drop.add_argument("--prefix", help="instead: all forks whose names begin so …")
    drop.add_argument("--older-than", default="1s", metavar="T", help="… and that are older than 2h, 7d, …")
    drop.add_argument("--yes", action="store_true", help="do not ask before many are dropped")
    drop.set_defaults(run=_drop_catalog)

    tag = commands.add_parser("tag", help="keep a snapshot of a catalog for ever, under a name")
    tag.add_argument("catalog", metavar="CATALOG")
    tag.add_argument("snapshot", type=int, metavar="SNAPSHOT")
    tag.add_argument("name", metavar="NAME")
    tag.set_defaults(run=_tag)

    untag = commands.add_parser("untag", help="let a tagged snapshot go when its time is over")
    untag.add_argument("catalog", metavar="CATALOG")
    untag.add_argument("name", metavar="NAME")
    untag.set_defaults(run=_untag)

    retention = commands.add_parser("retention", help="how long a catalog keeps snapshots; without options: as all do")
    retention.add_argument("catalog", metavar="CATALOG")
    retention.add_argument("--for", dest="retain_for", metavar="T", help="those younger than 12h, 7d, … are kept")
    retention.add_argument("--snapshots", type=int, metavar="N", help="the last N are kept")
    retention.set_defaults(run=_retention)

    undelete = commands.add_parser("undelete", help="bring back files that file_cleanup put into the trash")
    undelete.add_argument(
        "--run", dest="run_id", required=True, metavar="RUN_ID", help="the run, as in system.deletions"
    )
    undelete.set_defaults(run=_undelete)

    audits = commands.add_parser("audits", help="what the audits of flushes found, newest first")
    audits.add_argument("--run", dest="run_id", metavar="RUN_ID", help="only those of one run")
    audits.add_argument("--failed", action="store_true", help="only those that failed")
    audits.add_argument("--json", action="store_true", help="print one JSON array")
    audits.add_argument("--html", type=Path, metavar="FILE", help="write a page that needs no network")
    audits.set_defaults(run=_audits)

    dump = commands.add_parser("dump", help="write the whole catalog into a new DuckDB file")
    dump.add_argument("file", type=Path, metavar="FILE")
    _add_json(dump)
    dump.set_defaults(run=_dump)

    export = commands.add_parser("export", help="write one catalog into a new file that stock DuckDB attaches")
    export.add_argument("name", metavar="NAME", help="the catalog")
    export.add_argument("file", type=Path, metavar="FILE")
    export.set_defaults(run=_export)

    client_role = commands.add_parser(
        "client-role", help="make a Postgres role by which stock DuckDB reads catalogs, and nothing else can be read"
    )
    client_role.add_argument("role", metavar="ROLE")
    client_role.add_argument("--catalog", metavar="NAME", help="the only one that it can read (default: any)")
    client_role.add_argument("--drop", action="store_true", help="remove the role instead")
    client_role.set_defaults(run=_client_role)

    completion = commands.add_parser("completion", help="a script that completes this command in your shell")
    completion.add_argument("shell", choices=["bash", "zsh"])
    completion.set_defaults(run=_completion)

    airflow = commands.add_parser("airflow", help="let system.jobs know what your Airflow says")
    airflow.add_argument(
        "action", choices=["link"], help="after `airflow db migrate` in schema airflow of this database"
    )
    airflow.set_defaults(run=_airflow)

    stack = commands.add_parser("stack", help="the laptop stack: Postgres and Airflow (make run, up, down)")
    stack.add_argument("action", choices=["run", "up", "down"])
    stack.set_defaults(run=_stack)
    return parser


def _job_names() -> list[str]:
    """Without reading what they do, which takes longer than --help."""
    return sorted(path.stem for path in Path(__file__).parents[1].glob("*.py"))


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_session_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--catalog", default="main", help="default: main")
    parser.add_argument("--user", metavar="ID", help="who asks; needed for rows of USER tables")
    parser.add_argument(
        "--role",
        choices=["user", "service", "admin"],
        help="default: that of the user in system.users, else user; without --user: admin",
    )


def _db(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.postgres import EmbeddedPostgres
    from lakefork.settings import load_settings

    settings = load_settings()
    if settings.dsn is not None:
        if arguments.action == "url":
            print(settings.dsn)
            return 0
        print("lakefork: LAKEFORK_DSN is set, so that Postgres is used and the embedded one is left alone")
        return 0
    postgres = EmbeddedPostgres(settings)
    if arguments.action == "start":
        postgres.start()
        print(f"Postgres is running; its data is in {settings.home / 'postgres'}, `lakefork db url` prints the DSN")
    elif arguments.action == "stop":
        print("Postgres is stopped" if postgres.stop() else "Postgres was not running")
    else:
        print(postgres.url())
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import create_catalog
    from lakefork.catalog.connection import connect
    from lakefork.catalog.schema import init_catalog
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    settings = load_settings()
    data_path = arguments.data_path or str(settings.home / "data" / arguments.catalog)
    if "://" not in data_path:
        data_path = str(Path(data_path).absolute())
    with connect(database_url(settings), check_version=False) as connection, connection.transaction():
        init_catalog(connection)
        catalog = create_catalog(connection, arguments.catalog, data_path, author=getpass.getuser())
    if arguments.json:
        print(json.dumps(vars(catalog), default=str))
    else:
        print(f"catalog {catalog.name} is ready; its files go to {catalog.data_path}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.overview.status import read_status
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(database_url(settings)) as connection:
        status = read_status(connection, settings.flush)
    print(json.dumps(status.as_json()) if arguments.json else status.as_text())
    return 0


def _audits(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.audits import audits_page, audits_text, read_audits

    with connect(_database()) as connection:
        audits = read_audits(connection, arguments.run_id, failed_only=arguments.failed)
    if arguments.html:
        arguments.html.write_text(audits_page(audits))
    print(json.dumps([one.as_json() for one in audits]) if arguments.json else audits_text(audits))
    return 0


def _fork(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import fork_catalog

    path = arguments.data_path
    with connect(_database()) as connection:
        fork = fork_catalog(
            connection,
            arguments.parent,
            arguments.name,
            str(Path(path).absolute()) if path and "://" not in path else path,
            as_of=arguments.as_of,
            expires_after=_timedelta("--expires-after", arguments.expires_after),
            if_not_exists=arguments.if_not_exists,
        )
    if arguments.json:
        print(json.dumps(vars(fork), default=str))
    else:
        print(f"catalog {fork.name} is a fork of {arguments.parent}; its own files go to {fork.data_path}")
    return 0


def _timedelta(name: str, text: str | None) -> datetime.timedelta | None:
    from lakefork.durations import seconds_of

    return None if text is None else datetime.timedelta(seconds=seconds_of(text, name))


def _forks(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import list_forks, reclaimable
    from lakefork.errors import InvalidInputError
    from lakefork.overview.forks import forks_text, reclaim_text

    if arguments.reclaim and arguments.catalog is None:
        raise InvalidInputError("--reclaim needs a catalog: lakefork forks CATALOG --reclaim")
    with connect(_database()) as connection:
        found = (
            reclaimable(connection, arguments.catalog)
            if arguments.reclaim
            else list_forks(connection, arguments.catalog)
        )
    text = reclaim_text if arguments.reclaim else forks_text
    print(json.dumps(found, default=str) if arguments.json else text(found))
    return 0


def _drop_catalog(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import find_catalog
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import catalogs_to_drop, drop_in_chunks
    from lakefork.durations import seconds_of
    from lakefork.errors import InvalidInputError

    if (arguments.name is None) == (arguments.prefix is None):
        raise InvalidInputError("give the NAME of a catalog, or --prefix for many forks")
    with connect(_database()) as connection:
        if arguments.name is not None:
            catalogs = [find_catalog(connection, arguments.name)]
        else:
            age = datetime.timedelta(seconds=seconds_of(arguments.older_than, "--older-than"))
            catalogs = catalogs_to_drop(connection, arguments.prefix, age)
            if not _agreed(f"drop {len(catalogs)} fork(s) that begin with {arguments.prefix!r}?", arguments.yes):
                return 1
        for dropped in drop_in_chunks(connection, [catalog.catalog_id for catalog in catalogs], getpass.getuser()):
            print(f"{dropped:,} of {len(catalogs):,} catalog(s) dropped")
    print("their rows stay readable at earlier snapshots until retention_gc; file_cleanup frees what nobody needs")
    return 0


def _tag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import tag_snapshot

    with connect(_database()) as connection:
        tag_snapshot(connection, arguments.catalog, arguments.snapshot, arguments.name, author=getpass.getuser())
    print(f"snapshot {arguments.snapshot} of {arguments.catalog} is kept as {arguments.name}")
    return 0


def _untag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import untag_snapshot

    with connect(_database()) as connection:
        untag_snapshot(connection, arguments.catalog, arguments.name)
    print(f"{arguments.catalog} has no tag {arguments.name} any more")
    return 0


def _retention(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import set_retention
    from lakefork.errors import InvalidInputError

    snapshots, retain_for = arguments.snapshots, arguments.retain_for
    if snapshots is not None and snapshots < 1:
        raise InvalidInputError(f"--snapshots {snapshots}: at least the last one is kept")
    with connect(_database()) as connection:
        set_retention(connection, arguments.catalog, snapshots, retain_for)
    kept = [f"snapshots younger than {retain_for}"] if retain_for else []
    kept += [f"the last {snapshots:,}"] if snapshots else []
    print(f"{arguments.catalog} keeps {' and '.join(kept) or 'what the settings say'}")
    return 0


def _undelete(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.errors import StorageError
    from lakefork.settings import load_settings
    from lakefork.spark.file_cleanup import undelete
    from lakefork.storage import StorageOptions

    storage = load_settings().storage
    with connect(_database()) as connection:
        restored, problems = undelete(
            connection, arguments.run_id, StorageOptions(storage.s3_endpoint, storage.s3_region)
        )
    print(f"{restored:,} file(s) are back where they were")
    if problems:
        raise StorageError(f"{len(problems):,} file(s) could not be brought back; the first: {problems[0]}")
    return 0


def _agreed(question: str, yes: bool) -> bool:
    return yes or (sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() == "y")


def _without_pandas() -> None:
    """pyarrow and DuckDB import pandas if it is there, which takes longer than most statements; nothing needs it."""

    class NoPandas(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pandas":
                raise ImportError(name)

    sys.meta_path.insert(0, NoPandas())


def _sql(arguments: argparse.Namespace) -> int:
    _without_pandas()
    from lakefork.sql.console import run_sql

    text = sys.stdin.read() if arguments.text is None else arguments.text
    as_json = arguments.format == "json"
    output, error = run_sql(_database(), _session(arguments), text, as_json=as_json)
    if output:
        print(output)
    if error and not as_json:
        raise error
    return 1 if error else 0


def _load(arguments: argparse.Namespace) -> int:
    _without_pandas()
    from lakefork.sql.console import load_file

    print(load_file(_database(), _session(arguments), arguments.table, arguments.file, arguments.as_user))
    return 0


def _schemas(arguments: argparse.Namespace) -> int:
    from lakefork.sql.console import rewrite_schemas

    print(rewrite_schemas(_database(), arguments.catalog))
    return 0


def _session(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name, None) for name in ("catalog", "user", "role", "namespace")}


def _database() -> str:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    return database_url(load_settings())


def _run(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.database import database_url
    from lakefork.params import parse_params
    from lakefork.settings import load_settings
    from lakefork.spark.submit import quick_start, submit_command, submit_environment

    settings = load_settings()
    parse_params(arguments.job, arguments.params)
    environment = {**os.environ, **submit_environment(database_url(settings), settings.spark.master)}
    with quick_start() as conf:
        command = submit_command(settings, arguments.job, ["--params", arguments.params], conf)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout or ():
                # Spark merges a driver's two streams into one; the reason of a failure belongs on stderr.
                failed = line.startswith(f"{arguments.job} failed: ")
                print(line, end="", file=sys.stderr if failed else sys.stdout, flush=True)
    return process.returncode


def _dump(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.dump import dump_catalog
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    copied = dump_catalog(database_url(load_settings()), arguments.file)
    if arguments.json:
        print(json.dumps({"file": str(arguments.file), "tables": copied}))
    else:
        print(f"{arguments.file}: {len(copied)} tables, {sum(copied.values())} rows")
    return 0


def _completion(arguments: argparse.Namespace) -> int:
    from lakefork.completion import completion_script

    print(completion_script(_parser(), arguments.shell), end="")
    return 0


def _airflow(_: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.schema import link_airflow

    with connect(_database()) as connection:
        link_airflow(connection)
    print("system.jobs reads Airflow's tables from now on")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.client import export_catalog

    copied = export_catalog(_database(), arguments.name, arguments.file)
    print(
        f"catalog {arguments.name}, {copied['ducklake_data_file']} files: "
        f"ATTACH 'ducklake:{arguments.file}' AS lake (READ_ONLY)"
    )
    return 0


def _client_role(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.client import attach_statement, create_client_role, drop_client_role
    from lakefork.catalog.connection import connect

    dsn = _database()
    with connect(dsn) as connection:
        if arguments.drop:
            drop_client_role(connection, arguments.role)
            print(f"role {arguments.role} is gone")
            return 0
        password = create_client_role(connection, arguments.role, arguments.catalog)
    print(f"role {arguments.role} can read {f'catalog {arguments.catalog}' if arguments.catalog else 'every catalog'}")
    print("its password is shown only now; in DuckDB:")
    print(attach_statement(dsn, arguments.role, password, arguments.catalog or "NAME"))
    return 0


def _stack(arguments: argparse.Namespace) -> int:
    from lakefork.embedded import stack
    from lakefork.settings import load_settings

    actions: dict[str, Any] = {"run": stack.run, "up": stack.up, "down": stack.down}
    return int(actions[arguments.action](load_settings()))


if __name__ == "__main__":
    main()
