"""The commands. Heavy imports stay inside the functions, so that --help is fast."""

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


def _respond(arguments: argparse.Namespace, text: str, found: Any) -> int:
    """Prints the text for people, or the JSON for programs."""
    from lakefork.errors import printable

    lines = "\n".join(map(printable, text.split("\n")))
    print(json.dumps(found, default=str) if wants_json(arguments) else lines)
    return 0


def _warn(about: str, points: list[str]) -> None:
    for point in points:
        print(f"warning: {about} {point}", file=sys.stderr)


def _draw_bar(line: str) -> None:
    """Draws a progress bar over the previous one, at a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if "100%" in line else "", file=sys.stderr, flush=True)


def db(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.postgres import EmbeddedPostgres
    from lakefork.settings import load_settings

    settings = load_settings()
    if settings.dsn is not None:
        if arguments.action == "url":
            return _respond(arguments, settings.dsn, {"dsn": settings.dsn})
        text = "lakefork: LAKEFORK_DSN is set: that Postgres is used instead of the embedded one"
        return _respond(arguments, text, {"embedded": False})
    postgres = EmbeddedPostgres(settings)
    if arguments.action == "start":
        postgres.start(partial(print, file=sys.stderr, flush=True))
        data = settings.home / "postgres"
        text = f"Postgres is running; its data is in {data}, `lakefork db url` prints the DSN"
        return _respond(arguments, text, {"embedded": True, "running": True, "data": data})
    if arguments.action == "stop":
        stopped = postgres.stop()
        text = "Postgres is stopped" if stopped else "Postgres was not running"
        return _respond(arguments, text, {"embedded": True, "running": False, "stopped": bool(stopped)})
    return _respond(arguments, postgres.url(), {"dsn": postgres.url()})


def init(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import create_catalog
    from lakefork.catalog.connection import connect
    from lakefork.catalog.roots import add_root
    from lakefork.catalog.schema import init_catalog
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings
    from lakefork.storage.places import reject_home
    from lakefork.transfer.client import client_gaps

    settings = load_settings()
    data_path = _absolute(arguments.data_path or str(settings.home / "data" / arguments.catalog))
    root = data_path if arguments.data_path else _absolute(str(settings.home / "data"))
    reject_home("data path", data_path, str(settings.home))
    with connect(database_url(settings), check_version=False) as connection, connection.transaction():
        init_catalog(connection)
        catalog = create_catalog(connection, arguments.catalog, data_path, author=getpass.getuser())
        _warn("every login of this database, even a read-only one, can", client_gaps(connection))
        add_root(connection, root, author=getpass.getuser())
    text = f"catalog {catalog.name} is ready; its files go to {catalog.data_path}"
    return _respond(arguments, text, vars(catalog))


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def roots(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.roots import add_root, list_roots, remove_root
    from lakefork.errors import InvalidInputError
    from lakefork.settings import load_settings
    from lakefork.storage.places import check_root

    if (arguments.action == "list") != (arguments.path is None):
        raise InvalidInputError("usage: `lakefork roots`, `lakefork roots add PATH` or `lakefork roots remove PATH`")
    with connect(_database()) as connection:
        if arguments.action == "list":
            found = [vars(root) for root in list_roots(connection)]
            lines = [f"{one['path']}  {one['tables']} table(s)" for one in found]
            return _respond(arguments, "\n".join(lines) or "no root is allowed: LOCATION cannot be used", found)
        path = _absolute(arguments.path)
        if arguments.action == "remove":
            remove_root(connection, path)
            text = f"no new table can be placed below {path}; existing ones stay"
            return _respond(arguments, text, {"path": path, "removed": True})
        check_root(path, str(load_settings().home))
        added = add_root(connection, path, author=getpass.getuser())
    text = f"tables can be placed below {path}" if added else f"{path} was already allowed"
    return _respond(arguments, text, {"path": path, "added": added})


def status(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.overview.status import read_status
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(database_url(settings)) as connection:
        status = read_status(connection, settings.flush)
    return _respond(arguments, status.as_text(), status.as_json())


def audits(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.audits import audits_page, audits_text, read_audits

    with connect(_database()) as connection:
        audits = read_audits(connection, arguments.run_id, failed_only=arguments.failed)
    if arguments.html:
        arguments.html.write_text(audits_page(audits))
    return _respond(arguments, audits_text(audits), [one.as_json() for one in audits])


def gc(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.gc import gc_text, list_deletions, read_gc

    with connect(_database()) as connection:
        found = {**read_gc(connection), "deletions": list_deletions(connection).rows}
    return _respond(arguments, gc_text(found), found)


def fork(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import check_data_path
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import existing_catalogs, fork_catalog
    from lakefork.settings import load_settings

    path = arguments.data_path and _absolute(arguments.data_path)
    with connect(_database()) as connection:
        if path and not existing_catalogs(connection, [arguments.name]):
            from lakefork.storage import places  # importing it takes longer than a fork

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
    return _respond(arguments, text, vars(fork))


def _timedelta(name: str, text: str | None) -> datetime.timedelta | None:
    from lakefork.model.durations import seconds_of

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
    return _respond(arguments, (reclaim_text if arguments.reclaim else forks_text)(found), found)


def drop_catalog(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import find_catalog
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import catalogs_to_drop, drop_in_chunks
    from lakefork.errors import InvalidInputError
    from lakefork.model.durations import seconds_of
    from lakefork.progress import Bar

    if (arguments.name is None) == (arguments.prefix is None):
        raise InvalidInputError("specify the NAME of a catalog, or --prefix for many forks")
    if arguments.prefix == "":
        raise InvalidInputError("an empty --prefix would drop every fork: specify the beginning of their names")
    with connect(_database()) as connection:
        if arguments.name is not None:
            catalogs = [find_catalog(connection, arguments.name)]
        else:
            age = datetime.timedelta(seconds=seconds_of(arguments.older_than, "--older-than"))
            catalogs = catalogs_to_drop(connection, arguments.prefix, age)
            question = f"drop {len(catalogs)} fork(s) that begin with {arguments.prefix!r}?"
            if not arguments.yes and not _confirmed(question, arguments):
                raise InvalidInputError(f"{question} Nothing was dropped; use --yes to skip this question")
        bar = Bar(_draw_bar, len(catalogs))
        for dropped in drop_in_chunks(connection, [catalog.catalog_id for catalog in catalogs], getpass.getuser()):
            bar.reach(dropped, f"{dropped:,} of {len(catalogs):,} catalog(s)")
    text = (
        f"{len(catalogs):,} of {len(catalogs):,} catalog(s) dropped\n"
        "their rows stay readable at earlier snapshots until retention_gc; file_cleanup deletes unneeded files"
    )
    return _respond(arguments, text, {"dropped": [catalog.name for catalog in catalogs]})


def tag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import tag_snapshot

    with connect(_database()) as connection:
        tag_snapshot(connection, arguments.catalog, arguments.snapshot, arguments.name, author=getpass.getuser())
    text = f"snapshot {arguments.snapshot} of {arguments.catalog} is kept as {arguments.name}"
    return _respond(arguments, text, _selected(arguments, "catalog", "snapshot", "name"))


def untag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import untag_snapshot

    with connect(_database()) as connection:
        untag_snapshot(connection, arguments.catalog, arguments.name)
    text = f"tag {arguments.name} of {arguments.catalog} was removed"
    return _respond(arguments, text, _selected(arguments, "catalog", "name"))


def _selected(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
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
    text = f"{arguments.catalog} keeps {' and '.join(kept) or 'the snapshots of the settings'}"
    return _respond(arguments, text, _selected(arguments, "catalog", "retain_for", "snapshots"))


def undelete(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.errors import StorageError
    from lakefork.removal.undelete import undelete
    from lakefork.settings import load_settings
    from lakefork.storage import StorageOptions

    storage = load_settings().storage
    with connect(_database()) as connection:
        restored, problems = undelete(
            connection, arguments.run_id, StorageOptions(storage.s3_endpoint, storage.s3_region)
        )
    if problems:
        raise StorageError(
            f"{len(problems):,} file(s) could not be restored, {restored:,} were; the first: {problems[0]}"
        )
    text = f"{restored:,} file(s) were restored"
    return _respond(arguments, text, {"run_id": arguments.run_id, "restored": restored})


def _confirmed(question: str, arguments: argparse.Namespace) -> bool:
    """Asks a question at a terminal; returns False where nobody can be asked."""
    can_ask = sys.stdin.isatty() and not arguments.json
    return can_ask and input(f"{question} [y/N] ").strip().lower() == "y"


def sql(arguments: argparse.Namespace) -> int:
    from lakefork.sql.workers.launch import Zygote, leave_out_pandas

    Zygote.start()  # first, because it imports as much as the engine does, in parallel
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
        _database(), _session(arguments), arguments.table, arguments.file, arguments.as_user, _draw_bar
    )
    text = f"{rows} rows into {arguments.table} in {seconds:.1f} s"
    return _respond(arguments, text, {"table": arguments.table, "rows": rows, "seconds": round(seconds, 3)})


def schemas(arguments: argparse.Namespace) -> int:
    from lakefork.sql.console import rewrite_schemas

    count = rewrite_schemas(_database(), arguments.catalog)
    text = f"schema files of {count} namespaces were written"
    return _respond(arguments, text, {"catalog": arguments.catalog, "namespaces": count})


def _session(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name, None) for name in ("catalog", "user", "role", "namespace")}


def _database() -> str:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    return database_url(load_settings())


def run(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.errors import JobFailedError
    from lakefork.model.params import parse_params
    from lakefork.settings import load_settings
    from lakefork.spark.submit import quick_start, submit_command, submit_environment

    settings = load_settings()
    parse_params(arguments.job, arguments.params)
    connect(database_url(settings)).close()  # reports problems of the database before Spark starts
    environment = {**os.environ, **submit_environment(database_url(settings), settings.spark.master)}
    with quick_start() as conf:
        command = submit_command(settings, arguments.job, ["--params", arguments.params], conf)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            result = _relay_output(process.stdout or (), arguments.job, sys.stderr if arguments.json else None)
    if arguments.json and process.returncode:
        raise JobFailedError(result.removeprefix(f"{arguments.job} failed: "), {})
    if arguments.json:
        print(result)
    return process.returncode


def _relay_output(lines: Iterable[str], job: str, stream: TextIO | None = None) -> str:
    """Prints a driver's output, which Spark merges into one stream, with the failure on stderr and bars overwritten.

    Returns the line that matters: the failure, or else the last line, which is the result.
    """
    out = stream or sys.stdout
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


def copy(arguments: argparse.Namespace) -> int:
    from lakefork.cli.copy import run_copy_command

    return run_copy_command(arguments, _database, run, _respond)


def dump(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings
    from lakefork.transfer.dump import dump_catalog

    copied = dump_catalog(database_url(load_settings()), arguments.file, _draw_bar)
    text = f"{arguments.file}: {len(copied)} tables, {sum(copied.values())} rows"
    return _respond(arguments, text, {"file": arguments.file, "tables": copied})


def completion(arguments: argparse.Namespace) -> int:
    from lakefork.cli.completion import completion_script

    print(completion_script(arguments.parser, arguments.shell), end="")
    return 0


def airflow(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.schema import link_airflow
    from lakefork.resources import resource

    if arguments.action == "folders":
        folders = {f"AIRFLOW__CORE__{name}_FOLDER": str(resource(name.lower())) for name in ("DAGS", "PLUGINS")}
        return _respond(arguments, "\n".join(f"{name}={path}" for name, path in folders.items()), folders)
    with connect(_database()) as connection:
        link_airflow(connection)
    return _respond(arguments, "system.jobs now reads Airflow's tables", {"linked": True})


def export(arguments: argparse.Namespace) -> int:
    from lakefork.transfer.client import export_catalog

    copied = export_catalog(_database(), arguments.name, arguments.file, _draw_bar)
    files, attach = copied["ducklake_data_file"], f"ATTACH 'ducklake:{arguments.file}' AS lake (READ_ONLY)"
    found = {**_selected(arguments, "name", "file"), "files": files, "attach": attach}
    return _respond(arguments, f"catalog {arguments.name}, {files} files: {attach}", found)


def client_role(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.transfer.client import attach_statement, client_gaps, create_client_role, drop_client_role

    dsn = _database()
    with connect(dsn) as connection:
        if arguments.drop:
            drop_client_role(connection, arguments.role)
            return _respond(arguments, f"role {arguments.role} was dropped", {"role": arguments.role, "dropped": True})
        password = create_client_role(connection, arguments.role, arguments.catalog, arguments.connections)
        gaps = client_gaps(connection, arguments.role)
    _warn(f"role {arguments.role} can also", gaps)
    attach = attach_statement(dsn, arguments.role, password, arguments.catalog or "NAME")
    can_read = f"catalog {arguments.catalog}" if arguments.catalog else "every catalog"
    text = f"role {arguments.role} can read {can_read}\nits password is shown only once; in DuckDB:\n{attach}"
    return _respond(
        arguments,
        text,
        {**_selected(arguments, "role", "catalog"), "password": password, "attach": attach, "gaps": gaps},
    )


def serve(arguments: argparse.Namespace) -> int:
    from lakefork.server.serve import serve
    from lakefork.settings import load_settings

    settings = load_settings()
    given = settings.server
    host, port = arguments.host or given.host, given.port if arguments.port is None else arguments.port
    say = partial(print, file=sys.stderr, flush=True)
    return serve(settings, _database(), host, port, arguments.workers or given.workers, say)


def token(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.server.keys import token_key
    from lakefork.server.tokens import create_token, list_tokens, revoke_tokens
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(_database()) as connection:
        if arguments.action == "list":
            found = list_tokens(connection)
            lines = ["  ".join(str(value if value is not None else "-") for value in row.values()) for row in found]
            head = "token  catalog  user  role  created  by  expires  revoked"
            return _respond(arguments, "\n".join([head, *lines]) if lines else "there are no tokens", found)
        if arguments.action == "revoke":
            revoked = revoke_tokens(connection, arguments.token, arguments.catalog, arguments.user)
            return _respond(arguments, f"{len(revoked)} token(s) revoked", {"revoked": revoked})
        expires_in = arguments.expires_in or settings.server.token_expires_in
        who = arguments.catalog, arguments.user, arguments.role
        made, facts = create_token(connection, token_key(settings), *who, expires_in, getpass.getuser())
    about = "token {token_id} of user {user_id!r} in catalog {catalog}: at most role {role}, until {expires_at}"
    print(about.format(**facts), file=sys.stderr)
    return _respond(arguments, made, {"token": made, **facts})


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
    return code or _respond(
        arguments, "", {"status": "success", "action": arguments.action, **stack.addresses(settings)}
    )
