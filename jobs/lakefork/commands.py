"""What each command does. Heavy imports stay inside, so that --help answers at once."""

import argparse
import datetime
import getpass
import importlib.abc
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def db(arguments: argparse.Namespace) -> int:
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


def init(arguments: argparse.Namespace) -> int:
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


def status(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.overview.status import read_status
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(database_url(settings)) as connection:
        status = read_status(connection, settings.flush)
    print(json.dumps(status.as_json()) if arguments.json else status.as_text())
    return 0


def audits(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.audits import audits_page, audits_text, read_audits

    with connect(_database()) as connection:
        audits = read_audits(connection, arguments.run_id, failed_only=arguments.failed)
    if arguments.html:
        arguments.html.write_text(audits_page(audits))
    print(json.dumps([one.as_json() for one in audits]) if arguments.json else audits_text(audits))
    return 0


def fork(arguments: argparse.Namespace) -> int:
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


def forks(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.errors import InvalidInputError
    from lakefork.overview.forks import forks_text, list_forks, reclaim_text, reclaimable

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


def drop_catalog(arguments: argparse.Namespace) -> int:
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


def tag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import tag_snapshot

    with connect(_database()) as connection:
        tag_snapshot(connection, arguments.catalog, arguments.snapshot, arguments.name, author=getpass.getuser())
    print(f"snapshot {arguments.snapshot} of {arguments.catalog} is kept as {arguments.name}")
    return 0


def untag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import untag_snapshot

    with connect(_database()) as connection:
        untag_snapshot(connection, arguments.catalog, arguments.name)
    print(f"{arguments.catalog} has no tag {arguments.name} any more")
    return 0


def retention(arguments: argparse.Namespace) -> int:
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


def undelete(arguments: argparse.Namespace) -> int:
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


def sql(arguments: argparse.Namespace) -> int:
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


def load(arguments: argparse.Namespace) -> int:
    _without_pandas()
    from lakefork.sql.console import load_file

    print(load_file(_database(), _session(arguments), arguments.table, arguments.file, arguments.as_user))
    return 0


def schemas(arguments: argparse.Namespace) -> int:
    from lakefork.sql.console import rewrite_schemas

    print(rewrite_schemas(_database(), arguments.catalog))
    return 0


def _session(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name, None) for name in ("catalog", "user", "role", "namespace")}


def _database() -> str:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    return database_url(load_settings())


def run(arguments: argparse.Namespace) -> int:
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
            _pass_on(process.stdout or (), arguments.job)
    return process.returncode


def _pass_on(lines: Iterable[str], job: str) -> None:
    """Spark merges a driver's two streams into one; the reason of a failure belongs on stderr. Bars are drawn over."""
    drawn = False
    for line in lines:
        is_bar = line.startswith(f"{job}: [") and sys.stdout.isatty()
        start, end = "\r\033[K" if drawn else "", "" if is_bar else "\n"
        failed = line.startswith(f"{job} failed: ")
        print(f"{start}{line.rstrip()}", end=end, file=sys.stderr if failed else sys.stdout, flush=True)
        drawn = is_bar


def dump(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.dump import dump_catalog
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    copied = dump_catalog(database_url(load_settings()), arguments.file)
    if arguments.json:
        print(json.dumps({"file": str(arguments.file), "tables": copied}))
    else:
        print(f"{arguments.file}: {len(copied)} tables, {sum(copied.values())} rows")
    return 0


def completion(arguments: argparse.Namespace) -> int:
    from lakefork.completion import completion_script

    print(completion_script(arguments.parser, arguments.shell), end="")
    return 0


def airflow(_: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.schema import link_airflow

    with connect(_database()) as connection:
        link_airflow(connection)
    print("system.jobs reads Airflow's tables from now on")
    return 0


def export(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.client import export_catalog

    copied = export_catalog(_database(), arguments.name, arguments.file)
    print(
        f"catalog {arguments.name}, {copied['ducklake_data_file']} files: "
        f"ATTACH 'ducklake:{arguments.file}' AS lake (READ_ONLY)"
    )
    return 0


def client_role(arguments: argparse.Namespace) -> int:
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


def stack(arguments: argparse.Namespace) -> int:
    from lakefork.embedded import stack
    from lakefork.settings import load_settings

    settings = load_settings()
    if arguments.action == "up":
        return stack.up(settings, history=not arguments.no_history)
    return stack.run(settings) if arguments.action == "run" else stack.down(settings)
