"""lakefork backup: lists backups, and verifies that they are whole."""

import argparse
import contextlib
from typing import Any

from lakefork.cli.answers import absolute, database, respond


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("backup", help="list backups, and verify that they are whole (docs/backup.md)")
    parser.add_argument("action", choices=["list", "verify"])
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="a place of backups, or PLACE/backups/ID (list: default all made here)"
    )
    parser.add_argument("--full", action="store_true", help="verify: read every file (the default)")
    parser.add_argument("--sample", metavar="SHARE", help="verify: read this share of the files, such as 10%%")
    parser.set_defaults(run=backup)


def backup(arguments: argparse.Namespace) -> int:
    return _verify(arguments) if arguments.action == "verify" else _list(arguments)


def _place(path: str) -> tuple[Any, str | None]:
    """Whoever types a command may read what the operating system lets them read."""
    from lakefork.backups.format import split_place
    from lakefork.backups.place import Place
    from lakefork.settings import load_settings
    from lakefork.storage import StorageOptions
    from lakefork.storage.paths import normal_path

    storage = load_settings().storage
    where, backup_id = split_place(normal_path(absolute(path)))
    return Place(where, StorageOptions(storage.s3_endpoint, storage.s3_region)), backup_id


def _list(arguments: argparse.Namespace) -> int:
    from lakefork.backups.place import names_of
    from lakefork.errors import NotFoundError

    if arguments.path is None:
        return _list_made(arguments)
    place, backup_id = _place(arguments.path)
    manifests, damaged = place.read_manifests([backup_id] if backup_id else place.listing().manifests)
    if not manifests:
        raise NotFoundError(f"there is no backup at {place.path}{f': {names_of(damaged)}' if damaged else ''}")
    lines = []
    for one in reversed(manifests):
        base = f", relies on {one.base}" if one.base else ""
        lines.append(
            f"{one.backup_id}  {one}  {one.taken_at:%Y-%m-%d %H:%M:%S} UTC  {len(one.tables):,} table(s), {one.rows:,} "
            f"rows, {one.files:,} file(s), {one.bytes:,} bytes; {one.copied_bytes:,} copied{base}"
        )
        lines += [
            f"    {table.namespace}.{table.name}  {table.kind}  {table.rows:,} rows, {table.files:,} file(s), "
            f"{table.bytes:,} bytes"
            for table in one.tables
        ]
    lines += [f"damaged: {one}" for one in damaged]
    found = [one.model_dump(mode="json") for one in reversed(manifests)]
    return respond(arguments, "\n".join(lines), {"backups": found, "damaged": [str(one) for one in damaged]})


def _list_made(arguments: argparse.Namespace) -> int:
    """Those that this installation made, wherever they are."""
    from lakefork.catalog.connection import connect

    with connect(database()) as connection:
        rows = connection.execute("SELECT * FROM system.backups ORDER BY started_at DESC").fetchall()
    lines = [
        f"{row['backup_id']}  {row['catalog_name']}{'.' + row['namespace'] if row['namespace'] else ''}  "
        f"{row['status']}  {row['file_location']}  {row['table_count'] or 0:,} table(s), {row['size'] or 0:,} bytes"
        for row in rows
    ]
    return respond(arguments, "\n".join(lines) or "no backup was made yet", rows)


def _verify(arguments: argparse.Namespace) -> int:
    from lakefork.backups.format import DamagedBackupError
    from lakefork.errors import InvalidInputError
    from lakefork.transfer.backup.verify import parse_percent, verify_place

    if arguments.path is None:
        raise InvalidInputError("lakefork backup verify needs a PATH")
    if arguments.full and arguments.sample:
        raise InvalidInputError("give --full or --sample, not both")
    place, backup_id = _place(arguments.path)
    percent = parse_percent(arguments.sample) if arguments.sample else 100.0
    found = list(verify_place(place, backup_id, percent))
    for one in found:
        _remember(one)
    if damaged := [one for one in found if one.problems]:
        first = damaged[0]
        raise DamagedBackupError(
            f"{len(damaged):,} of {len(found):,} backup(s) are damaged; {first.backup_id} has {len(first.problems):,} "
            f"problem(s), the first: {first.problems[0]}"
        )
    lines = [
        f"{one.backup_id} is whole: {one.files:,} file(s), {one.read:,} of them read ({one.bytes_read:,} bytes)"
        for one in found
    ]
    return respond(arguments, "\n".join(lines), [{**vars(one), "percent": one.percent} for one in found])


def _remember(found: Any) -> None:
    """Where there is the database of whoever made it; a backup can be verified without."""
    from lakefork.catalog.backups import note_verified
    from lakefork.catalog.connection import connect
    from lakefork.errors import LakeforkError

    with contextlib.suppress(LakeforkError), connect(database()) as connection:
        note_verified(connection, found.backup_id, found.percent, len(found.problems))
