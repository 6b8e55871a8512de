"""Commands about clients of the catalog: dumps, exports, roles for stock DuckDB."""

import argparse
from pathlib import Path
from typing import Any

from lakefork.cli.answers import database, draw_bar, respond, selected, warn


def add_parsers(commands: Any) -> None:
    for add in (_add_dump, _add_export, _add_client_role):
        add(commands)


def _add_dump(commands: Any) -> None:
    parser = commands.add_parser("dump", help="copy the catalog tables to a new DuckDB file")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=dump)


def dump(arguments: argparse.Namespace) -> int:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings
    from lakefork.transfer.dump import dump_catalog

    copied = dump_catalog(database_url(load_settings()), arguments.file, draw_bar)
    text = f"{arguments.file}: {len(copied)} tables, {sum(copied.values())} rows"
    return respond(arguments, text, {"file": arguments.file, "tables": copied})


def _add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="write one catalog to a new file that stock DuckDB can attach")
    parser.add_argument("name", metavar="NAME", help="the catalog")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=export)


def export(arguments: argparse.Namespace) -> int:
    from lakefork.transfer.client import export_catalog

    copied = export_catalog(database(), arguments.name, arguments.file, draw_bar)
    files, attach = copied["ducklake_data_file"], f"ATTACH 'ducklake:{arguments.file}' AS lake (READ_ONLY)"
    found = {**selected(arguments, "name", "file"), "files": files, "attach": attach}
    return respond(arguments, f"catalog {arguments.name}, {files} files: {attach}", found)


def _add_client_role(commands: Any) -> None:
    parser = commands.add_parser(
        "client-role", help="create a Postgres role that can only read catalogs from stock DuckDB"
    )
    parser.add_argument("role", metavar="ROLE")
    parser.add_argument("--catalog", metavar="NAME", help="the only catalog that it can read (default: any)")
    parser.add_argument(
        "--connections", type=int, default=8, metavar="N", help="connection limit of the role (default: 8)"
    )
    parser.add_argument("--drop", action="store_true", help="drop the role instead")
    parser.set_defaults(run=client_role)


def client_role(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.transfer.client import attach_statement, client_gaps, create_client_role, drop_client_role

    dsn = database()
    with connect(dsn) as connection:
        if arguments.drop:
            drop_client_role(connection, arguments.role)
            return respond(arguments, f"role {arguments.role} was dropped", {"role": arguments.role, "dropped": True})
        password = create_client_role(connection, arguments.role, arguments.catalog, arguments.connections)
        gaps = client_gaps(connection, arguments.role)
    warn(f"role {arguments.role} can also", gaps)
    attach = attach_statement(dsn, arguments.role, password, arguments.catalog or "NAME")
    can_read = f"catalog {arguments.catalog}" if arguments.catalog else "every catalog"
    text = f"role {arguments.role} can read {can_read}\nits password is shown only once; in DuckDB:\n{attach}"
    return respond(
        arguments,
        text,
        {**selected(arguments, "role", "catalog"), "password": password, "attach": attach, "gaps": gaps},
    )
