"""Commands about the installation: its Postgres, schema, allowed roots, and the laptop stack."""

import argparse
import contextlib
import getpass
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from lakefork.cli.answers import absolute, database, respond, warn
from lakefork.cli.upgrade import upgrade


def add_parsers(commands: Any) -> None:
    for add in (_add_db, _add_init, _add_upgrade, _add_roots, _add_status, _add_airflow, _add_stack, _add_completion):
        add(commands)


def _add_db(commands: Any) -> None:
    parser = commands.add_parser("db", help="the embedded Postgres")
    parser.add_argument("action", choices=["start", "stop", "url"], help="url prints the DSN, with its password")
    parser.set_defaults(run=db)


def db(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.postgres import EmbeddedPostgres
    from lakefork.settings import load_settings

    settings = load_settings()
    if settings.dsn is not None:
        if arguments.action == "url":
            return respond(arguments, settings.dsn, {"dsn": settings.dsn})
        text = "lakefork: LAKEFORK_DSN is set: that Postgres is used instead of the embedded one"
        return respond(arguments, text, {"embedded": False})
    postgres = EmbeddedPostgres(settings)
    if arguments.action == "start":
        postgres.start(partial(print, file=sys.stderr, flush=True))
        data = settings.home / "postgres"
        text = f"Postgres is running; its data is in {data}, `lakefork db url` prints the DSN"
        return respond(arguments, text, {"embedded": True, "running": True, "data": data})
    if arguments.action == "stop":
        stopped = postgres.stop()
        text = "Postgres is stopped" if stopped else "Postgres was not running"
        return respond(arguments, text, {"embedded": True, "running": False, "stopped": bool(stopped)})
    return respond(arguments, postgres.url(), {"dsn": postgres.url()})


def _add_init(commands: Any) -> None:
    parser = commands.add_parser("init", help="apply the schema to an empty database and create the first catalog")
    parser.add_argument("--catalog", default="main", help="name of the first catalog (default: main)")
    parser.add_argument("--data-path", help="where its files go (default: data/<catalog> in LAKEFORK_HOME)")
    parser.set_defaults(run=init)


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
    data_path = absolute(arguments.data_path or str(settings.home / "data" / arguments.catalog))
    root = data_path if arguments.data_path else absolute(str(settings.home / "data"))
    reject_home("data path", data_path, str(settings.home))
    with connect(database_url(settings), check_version=False) as connection, connection.transaction():
        init_catalog(connection)
        catalog = create_catalog(connection, arguments.catalog, data_path, author=getpass.getuser())
        warn("every login of this database, even a read-only one, can", client_gaps(connection))
        add_root(connection, root, author=getpass.getuser())
    text = f"catalog {catalog.name} is ready; its files go to {catalog.data_path}"
    return respond(arguments, text, vars(catalog))


def _add_upgrade(commands: Any) -> None:
    parser = commands.add_parser("upgrade", help="upgrade the schema of an existing catalog to this version")
    parser.add_argument("--dry-run", action="store_true", help="only print the steps")
    parser.set_defaults(run=upgrade)


def _add_roots(commands: Any) -> None:
    parser = commands.add_parser("roots", help="directories and S3 prefixes below which LOCATION may place tables")
    parser.add_argument("action", nargs="?", choices=["list", "add", "remove"], default="list", help="default: list")
    parser.add_argument("path", nargs="?", metavar="PATH", help="an existing directory, or s3://bucket/…")
    parser.set_defaults(run=roots)


def roots(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.roots import add_root, list_roots, remove_root
    from lakefork.errors import InvalidInputError
    from lakefork.settings import load_settings
    from lakefork.storage.places import check_root

    if (arguments.action == "list") != (arguments.path is None):
        raise InvalidInputError("usage: `lakefork roots`, `lakefork roots add PATH` or `lakefork roots remove PATH`")
    with connect(database()) as connection:
        if arguments.action == "list":
            found = [vars(root) for root in list_roots(connection)]
            lines = [f"{one['path']}  {one['tables']} table(s)" for one in found]
            return respond(arguments, "\n".join(lines) or "no root is allowed: LOCATION cannot be used", found)
        path = absolute(arguments.path)
        if arguments.action == "remove":
            remove_root(connection, path)
            text = f"no new table can be placed below {path}; existing ones stay"
            return respond(arguments, text, {"path": path, "removed": True})
        check_root(path, str(load_settings().home))
        added = add_root(connection, path, author=getpass.getuser())
    text = f"tables can be placed below {path}" if added else f"{path} was already allowed"
    return respond(arguments, text, {"path": path, "added": added})


def _add_status(commands: Any) -> None:
    parser = commands.add_parser("status", help="catalogs, tables, waiting rows, files, bytes and last runs")
    parser.set_defaults(run=status)


def status(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.overview.status import read_status
    from lakefork.settings import load_settings

    settings = load_settings()
    with connect(database_url(settings)) as connection:
        status = read_status(connection, settings.flush)
    return respond(arguments, status.as_text(), status.as_json())


def _add_airflow(commands: Any) -> None:
    parser = commands.add_parser("airflow", help="connect system.jobs to your Airflow")
    parser.add_argument(
        "action",
        choices=["link", "folders"],
        help="link: run it after `airflow db migrate` in schema airflow of this database; folders: of DAGs and plugin",
    )
    parser.set_defaults(run=airflow)


def airflow(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.schema import link_airflow
    from lakefork.resources import resource

    if arguments.action == "folders":
        folders = {f"AIRFLOW__CORE__{name}_FOLDER": str(resource(name.lower())) for name in ("DAGS", "PLUGINS")}
        return respond(arguments, "\n".join(f"{name}={path}" for name, path in folders.items()), folders)
    with connect(database()) as connection:
        link_airflow(connection)
    return respond(arguments, "system.jobs now reads Airflow's tables", {"linked": True})


def _add_stack(commands: Any) -> None:
    parser = commands.add_parser("stack", help="the laptop stack: Postgres and Airflow (make run, up, down)")
    parser.add_argument("action", choices=["run", "up", "down"])
    parser.add_argument("--no-history", action="store_true", help="up: do not run DAGs for the demo")
    parser.set_defaults(run=stack)


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
    return code or respond(
        arguments, "", {"status": "success", "action": arguments.action, **stack.addresses(settings)}
    )


def _add_completion(commands: Any) -> None:
    parser = commands.add_parser("completion", help="print a completion script for your shell")
    parser.add_argument("shell", choices=["bash", "zsh"])
    parser.set_defaults(run=completion)


def completion(arguments: argparse.Namespace) -> int:
    from lakefork.cli.completion import completion_script

    print(completion_script(arguments.parser, arguments.shell), end="")
    return 0
