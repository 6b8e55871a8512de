"""`lakefork copy`: begin, look at, resume and give up copies of Postgres databases."""

import argparse
import json
from typing import Any

from lakefork.cli import jobs
from lakefork.cli.answers import database, respond

ACTIONS = ("list-parts", "compare", "status", "resume", "abandon")
SKIPS = ("large_objects", "indexes", "constraints", "sequences", "vacuum", "extensions")


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("copy", help="copy a Postgres into another Postgres, or into the lake (docs/copy.md)")
    parser.add_argument(
        "action", nargs="?", choices=ACTIONS,
        help="default: begin a copy; list-parts: show how tables would be split; the others are about a copy",
    )  # fmt: skip
    parser.add_argument("copy_id", nargs="?", metavar="COPY_ID", help="which copy; status without it shows all")
    parser.add_argument("--source", metavar="NAME", help="the connection that is copied: LAKEFORK_CONNECTIONS__<NAME>")
    parser.add_argument("--target", metavar="NAME", help="the connection that it is copied into")
    parser.add_argument("--into", metavar="CATALOG", help="instead: the catalog whose tables it becomes")
    parser.add_argument("--copy-id", dest="new_id", metavar="ID", help="a name for the copy (default: made up)")
    for name, what in (
        ("include", "copy only these tables, such as app.*"), ("exclude", "leave these tables out"),
        ("exclude-data", "copy these tables without their rows"), ("exclude-indexes", "do not build these indexes"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", action="append", metavar="PATTERN", help=f"{what}; may be repeated")
    parser.add_argument("--split-larger-than", metavar="SIZE", help="copy larger tables in parts (default: 250MB)")
    for name in ("table", "index", "large-object"):
        parser.add_argument(f"--{name}-jobs", type=int, metavar="N", help="how many work at the same time (default: 4)")
    parser.add_argument("--skip", action="append", choices=SKIPS, help="leave this out altogether; may be repeated")
    parser.add_argument("--roles", action="store_true", help="make missing roles on the target, without passwords")
    parser.add_argument("--drop-if-exists", action="store_true", help="drop what the target has of the same names")
    parser.add_argument(
        "--owner-column", action="append", metavar="TABLE=COLUMN", help="TABLE becomes a USER table; may be repeated"
    )
    parser.add_argument("--unsupported-types", choices=["refuse", "text"], help="of the lake (default: refuse)")
    parser.add_argument("--no-compare", action="store_true", help="do not compare source and target at the end")
    parser.add_argument("--follow", action="store_true", help="keep a replication slot that begins where the copy ends")
    parser.add_argument(
        "--replica-identity-full", action="store_true", help="follow: tables without a key send whole old rows"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be copied, and nothing else")
    parser.add_argument("--not-consistent", action="store_true", help="resume: take a new snapshot if it is lost")
    parser.set_defaults(run=copy)


def params_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given, as parameters of the job."""
    from lakefork.errors import InvalidInputError

    names = (
        "source", "target", "into", "include", "exclude", "exclude_data", "exclude_indexes", "split_larger_than",
        "table_jobs", "index_jobs", "large_object_jobs", "skip", "unsupported_types",
    )  # fmt: skip
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    flags = ("roles", "drop_if_exists", "follow", "replica_identity_full", "dry_run")
    given |= {name: True for name in flags if getattr(arguments, name)}
    if arguments.no_compare:
        given["compare"] = False
    if arguments.new_id:
        given["copy_id"] = arguments.new_id
    if arguments.owner_column:
        pairs = [one.partition("=") for one in arguments.owner_column]
        if bad := [
            one for one, (_, sign, column) in zip(arguments.owner_column, pairs, strict=True) if not sign or not column
        ]:
            raise InvalidInputError(f"--owner-column {bad[0]!r}: write TABLE=COLUMN, such as app.notes=owner_id")
        given["owner_columns"] = {table: column for table, _, column in pairs}
    return given


def copy(arguments: argparse.Namespace) -> int:
    action = arguments.action
    if action in (None, "resume"):
        given = _resumed(arguments, database()) if action else params_of(arguments)
        arguments.job, arguments.params = "postgres_copy", json.dumps(given)
        return jobs.run(arguments)
    from lakefork.model.params import PostgresCopyParams, parse_params
    from lakefork.transfer.postgres_copy import commands

    if action == "list-parts":
        given = {"target": arguments.target or arguments.source, **params_of(arguments)}
        params = parse_params("postgres_copy", json.dumps(given))
        assert isinstance(params, PostgresCopyParams)  # noqa: S101 - by its name
        found = commands.list_parts(params)
        return respond(arguments, "\n".join(map(commands.part_line, found)) or "there are no rows to copy", found)
    if action == "status":
        copies = commands.statuses(database(), arguments.copy_id)
        return respond(arguments, "\n".join(map(commands.status_line, copies)) or "no copy was made", copies)
    copy_id = _required_id(arguments)
    if action == "compare":
        differences = commands.compare_now(database(), copy_id)
        text = "\n".join(differences) or "source and target are equal"
        respond(arguments, text, {"copy_id": copy_id, "differences": differences})
        return 1 if differences else 0
    removed = commands.abandon(database(), copy_id, _storage())
    return respond(
        arguments,
        f"copy {copy_id} was abandoned, {removed} staged file(s) were removed",
        {"copy_id": copy_id, "removed": removed},
    )


def _storage() -> Any:
    from lakefork.settings import load_settings
    from lakefork.storage import StorageOptions

    storage = load_settings().storage
    return StorageOptions(storage.s3_endpoint, storage.s3_region)


def _required_id(arguments: argparse.Namespace) -> str:
    from lakefork.errors import InvalidInputError

    if not arguments.copy_id:
        raise InvalidInputError(f"lakefork copy {arguments.action} needs a COPY_ID; `lakefork copy status` lists them")
    return str(arguments.copy_id)


def _resumed(arguments: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """What the copy was begun with, and what is said now of how it goes on."""
    from lakefork.transfer.postgres_copy.commands import begun_with

    given = params_of(arguments)
    found = begun_with(dsn, _required_id(arguments)) | given
    return found | {"resume": True, "copy_id": arguments.copy_id, "not_consistent": arguments.not_consistent}
