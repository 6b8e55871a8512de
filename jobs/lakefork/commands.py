"""What each command does. Heavy imports stay inside, so that --help answers at once."""

import argparse
import contextlib
import datetime
import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TextIO


def wants_json(arguments: argparse.Namespace) -> bool:
    return getattr(arguments, "json", False) or getattr(arguments, "format", None) == "json"


def _say(arguments: argparse.Namespace, text: str, found: Any) -> int:
    """For people, or for programs."""
    print(json.dumps(found, default=str) if wants_json(arguments) else text)
    return 0


def _warn(about: str, points: list[str]) -> None:
    for point in points:
        print(f"warning: {about} {point}", file=sys.stderr)


def _draw(line: str) -> None:
    """A bar over the one before; only people at a terminal are told how far it is."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if "100%" in line else "", file=sys.stderr, flush=True)


def db(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.postgres import EmbeddedPostgres
    from lakefork.settings import load_settings

    settings = load_settings()
    if settings.dsn is not None:
        if arguments.action == "url":
            return _say(arguments, settings.dsn, {"dsn": settings.dsn})
        text = "lakefork: LAKEFORK_DSN is set, so that Postgres is used and the embedded one is left alone"
        return _say(arguments, text, {"embedded": False})
    postgres = EmbeddedPostgres(settings)
    if arguments.action == "start":
        postgres.start(partial(print, file=sys.stderr, flush=True))
        data = settings.home / "postgres"
        text = f"Postgres is running; its data is in {data}, `lakefork db url` prints the DSN"
        return _say(arguments, text, {"embedded": True, "running": True, "data": data})
    if arguments.action == "stop":
        stopped = postgres.stop()
        text = "Postgres is stopped" if stopped else "Postgres was not running"
        return _say(arguments, text, {"embedded": True, "running": False, "stopped": bool(stopped)})
    return _say(arguments, postgres.url(), {"dsn": postgres.url()})


def init(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import create_catalog
    from lakefork.catalog.client import client_gaps
    from lakefork.catalog.connection import connect
    from lakefork.catalog.roots import add_root
    from lakefork.catalog.schema import init_catalog
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings
    from lakefork.storage.places import refuse_home

    settings = load_settings()
    data_path = _absolute(arguments.data_path or str(settings.home / "data" / arguments.catalog))
    root = data_path if arguments.data_path else _absolute(str(settings.home / "data"))
    refuse_home("data path", data_path, str(settings.home))
    with connect(database_url(settings), check_version=False) as connection, connection.transaction():
        init_catalog(connection)
        catalog = create_catalog(connection, arguments.catalog, data_path, author=getpass.getuser())
        _warn("every login of this database, also one that may only read, can", client_gaps(connection))
        add_root(connection, root, author=getpass.getuser())
    text = f"catalog {catalog.name} is ready; its files go to {catalog.data_path}"
    return _say(arguments, text, vars(catalog))


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def roots(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.roots import add_root, list_roots, remove_root
    from lakefork.errors import InvalidInputError
    from lakefork.settings import load_settings
    from lakefork.storage.places import check_root

    if (arguments.action == "list") != (arguments.path is None):
        raise InvalidInputError("write `lakefork roots`, `lakefork roots add PATH` or `lakefork roots remove PATH`")
    with connect(_database()) as connection:
        if arguments.action == "list":
            found = [vars(root) for root in list_roots(connection)]
            lines = [f"{one['path']}  {one['tables']} table(s)" for one in found]
            return _say(arguments, "\n".join(lines) or "no root is allowed: LOCATION cannot be used", found)
        path = _absolute(arguments.path)
        if arguments.action == "remove":
            remove_root(connection, path)
            text = f"no new table can be put below {path}; those that are there stay"
            return _say(arguments, text, {"path": path, "removed": True})
        check_root(path, str(load_settings().home))
        added = add_root(connection, path, author=getpass.getuser())
    text = f"tables can be put below {path}" if added else f"{path} was allowed before"
    return _say(arguments, text, {"path": path, "added": added})


def status(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.overview.status import read_status
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(database_url(settings)) as connection:
        status = read_status(connection, settings.flush)
    return _say(arguments, status.as_text(), status.as_json())


def audits(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.audits import audits_page, audits_text, read_audits

    with connect(_database()) as connection:
        audits = read_audits(connection, arguments.run_id, failed_only=arguments.failed)
    if arguments.html:
        arguments.html.write_text(audits_page(audits))
    return _say(arguments, audits_text(audits), [one.as_json() for one in audits])


def gc(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.gc import gc_text, list_deletions, read_gc

    with connect(_database()) as connection:
        found = {**read_gc(connection), "deletions": list_deletions(connection).rows}
    return _say(arguments, gc_text(found), found)


def fork(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import check_data_path
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import existing_catalogs, fork_catalog
    from lakefork.settings import load_settings

    path = arguments.data_path and _absolute(arguments.data_path)
    with connect(_database()) as connection:
        if path and not existing_catalogs(connection, [arguments.name]):
            from lakefork.storage import places  # it takes longer than a fork

            places.check_data_path(path, str(load_settings().home), partial(check_data_path, connection))
        fork = fork_catalog(
            connection,
            arguments.parent,
            arguments.name,
            path,
            as_of=arguments.as_of,
            expires_after=_timedelta("--expires-after", arguments.expires_after),
            if_not_exists=arguments.if_not_exists,
        )
    text = f"catalog {fork.name} is a fork of {arguments.parent}; its own files go to {fork.data_path}"
    return _say(arguments, text, vars(fork))


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
    return _say(arguments, (reclaim_text if arguments.reclaim else forks_text)(found), found)


def drop_catalog(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import find_catalog
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import catalogs_to_drop, drop_in_chunks
    from lakefork.durations import seconds_of
    from lakefork.errors import InvalidInputError
    from lakefork.progress import Bar

    if (arguments.name is None) == (arguments.prefix is None):
        raise InvalidInputError("give the NAME of a catalog, or --prefix for many forks")
    with connect(_database()) as connection:
        if arguments.name is not None:
            catalogs = [find_catalog(connection, arguments.name)]
        else:
            age = datetime.timedelta(seconds=seconds_of(arguments.older_than, "--older-than"))
            catalogs = catalogs_to_drop(connection, arguments.prefix, age)
            question = f"drop {len(catalogs)} fork(s) that begin with {arguments.prefix!r}?"
            if not arguments.yes and not _agreed(question, arguments):
                raise InvalidInputError(f"{question} Nothing was dropped; --yes says so without being asked")
        bar = Bar(_draw, len(catalogs))
        for dropped in drop_in_chunks(connection, [catalog.catalog_id for catalog in catalogs], getpass.getuser()):
            bar.reach(dropped, f"{dropped:,} of {len(catalogs):,} catalog(s)")
    text = (
        f"{len(catalogs):,} of {len(catalogs):,} catalog(s) dropped\n"
        "their rows stay readable at earlier snapshots until retention_gc; file_cleanup frees what nobody needs"
    )
    return _say(arguments, text, {"dropped": [catalog.name for catalog in catalogs]})


def tag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import tag_snapshot

    with connect(_database()) as connection:
        tag_snapshot(connection, arguments.catalog, arguments.snapshot, arguments.name, author=getpass.getuser())
    text = f"snapshot {arguments.snapshot} of {arguments.catalog} is kept as {arguments.name}"
    return _say(arguments, text, _given(arguments, "catalog", "snapshot", "name"))


def untag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import untag_snapshot

    with connect(_database()) as connection:
        untag_snapshot(connection, arguments.catalog, arguments.name)
    text = f"{arguments.catalog} has no tag {arguments.name} any more"
    return _say(arguments, text, _given(arguments, "catalog", "name"))


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}


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
    text = f"{arguments.catalog} keeps {' and '.join(kept) or 'what the settings say'}"
    return _say(arguments, text, _given(arguments, "catalog", "retain_for", "snapshots"))


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
    if problems:
        raise StorageError(
            f"{len(problems):,} file(s) could not be brought back, {restored:,} are; the first: {problems[0]}"
        )
    text = f"{restored:,} file(s) are back where they were"
    return _say(arguments, text, {"run_id": arguments.run_id, "restored": restored})


def _agreed(question: str, arguments: argparse.Namespace) -> bool:
    """Only a person at a terminal can be asked."""
    can_ask = sys.stdin.isatty() and not arguments.json
    return can_ask and input(f"{question} [y/N] ").strip().lower() == "y"


def sql(arguments: argparse.Namespace) -> int:
    from lakefork.sql.workers.launch import Zygote, leave_out_pandas

    Zygote.start()  # first of all: it imports as much as the engine does, at the same time
    leave_out_pandas()
    from lakefork.sql.console import run_sql

    text = sys.stdin.read() if arguments.text is None else arguments.text
    as_json = wants_json(arguments)
    error = run_sql(_database(), _session(arguments), text, partial(print, flush=True), as_json=as_json)
    if error and not as_json:
        raise error
    return 1 if error else 0


def load(arguments: argparse.Namespace) -> int:
    from lakefork.sql.workers.launch import leave_out_pandas

    leave_out_pandas()
    from lakefork.sql.console import load_file

    rows, seconds = load_file(
        _database(), _session(arguments), arguments.table, arguments.file, arguments.as_user, _draw
    )
    text = f"{rows} rows into {arguments.table} in {seconds:.1f} s"
    return _say(arguments, text, {"table": arguments.table, "rows": rows, "seconds": round(seconds, 3)})


def schemas(arguments: argparse.Namespace) -> int:
    from lakefork.sql.console import rewrite_schemas

    count = rewrite_schemas(_database(), arguments.catalog)
    text = f"schema files of {count} namespaces are written"
    return _say(arguments, text, {"catalog": arguments.catalog, "namespaces": count})


def _session(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name, None) for name in ("catalog", "user", "role", "namespace")}


def _database() -> str:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    return database_url(load_settings())


def run(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.database import database_url
    from lakefork.errors import JobFailedError
    from lakefork.params import parse_params
    from lakefork.settings import load_settings
    from lakefork.spark.submit import quick_start, submit_command, submit_environment

    settings = load_settings()
    parse_params(arguments.job, arguments.params)
    environment = {**os.environ, **submit_environment(database_url(settings), settings.spark.master)}
    with quick_start() as conf:
        command = submit_command(settings, arguments.job, ["--params", arguments.params], conf)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            result = _pass_on(process.stdout or (), arguments.job, sys.stderr if arguments.json else None)
    if arguments.json and process.returncode:
        raise JobFailedError(result.removeprefix(f"{arguments.job} failed: "), {})
    if arguments.json:
        print(result)
    return process.returncode


def _pass_on(lines: Iterable[str], job: str, place: TextIO | None = None) -> str:
    """Spark merges a driver's two streams into one; the reason of a failure belongs on stderr. Bars are drawn over.

    Returns the line that matters: the reason, or else the last, which is the result.
    """
    out = place or sys.stdout
    drawn, result = False, ""
    for line in lines:
        is_bar = line.startswith(f"{job}: [") and out.isatty()
        start, end = "\r\033[K" if drawn else "", "" if is_bar else "\n"
        failed = line.startswith(f"{job} failed: ")
        print(f"{start}{line.rstrip()}", end=end, file=sys.stderr if failed else out, flush=True)
        drawn = is_bar
        if failed or not result.startswith(f"{job} failed: "):
            result = line.rstrip()
    return result


def dump(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.dump import dump_catalog
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    copied = dump_catalog(database_url(load_settings()), arguments.file, _draw)
    text = f"{arguments.file}: {len(copied)} tables, {sum(copied.values())} rows"
    return _say(arguments, text, {"file": arguments.file, "tables": copied})


def completion(arguments: argparse.Namespace) -> int:
    from lakefork.completion import completion_script

    print(completion_script(arguments.parser, arguments.shell), end="")
    return 0


def airflow(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.schema import link_airflow

    with connect(_database()) as connection:
        link_airflow(connection)
    return _say(arguments, "system.jobs reads Airflow's tables from now on", {"linked": True})


def export(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.client import export_catalog

    copied = export_catalog(_database(), arguments.name, arguments.file, _draw)
    files, attach = copied["ducklake_data_file"], f"ATTACH 'ducklake:{arguments.file}' AS lake (READ_ONLY)"
    found = {**_given(arguments, "name", "file"), "files": files, "attach": attach}
    return _say(arguments, f"catalog {arguments.name}, {files} files: {attach}", found)


def client_role(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.client import attach_statement, client_gaps, create_client_role, drop_client_role
    from lakefork.catalog.connection import connect

    dsn = _database()
    with connect(dsn) as connection:
        if arguments.drop:
            drop_client_role(connection, arguments.role)
            return _say(arguments, f"role {arguments.role} is gone", {"role": arguments.role, "dropped": True})
        password = create_client_role(connection, arguments.role, arguments.catalog, arguments.connections)
        gaps = client_gaps(connection, arguments.role)
    _warn(f"role {arguments.role} can also", gaps)
    attach = attach_statement(dsn, arguments.role, password, arguments.catalog or "NAME")
    can_read = f"catalog {arguments.catalog}" if arguments.catalog else "every catalog"
    text = f"role {arguments.role} can read {can_read}\nits password is shown only now; in DuckDB:\n{attach}"
    return _say(
        arguments, text, {**_given(arguments, "role", "catalog"), "password": password, "attach": attach, "gaps": gaps}
    )


def stack(arguments: argparse.Namespace) -> int:
    from lakefork.embedded import stack
    from lakefork.settings import load_settings

    settings = load_settings()
    up = partial(stack.up, history=not arguments.no_history)
    action: Callable[[Any], int] = {"run": stack.run, "down": stack.down}.get(arguments.action, up)
    if not arguments.json:
        return action(settings)
    with contextlib.redirect_stdout(sys.stderr):
        code = action(settings)
    return code or _say(arguments, "", {"status": "success", "action": arguments.action, **stack.addresses(settings)})
