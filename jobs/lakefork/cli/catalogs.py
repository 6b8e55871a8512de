"""Commands about catalogs: forks, tags, how long snapshots are kept."""

import argparse
import datetime
import getpass
from functools import partial
from typing import Any

from lakefork.cli.answers import absolute, confirmed, database, draw_bar, respond, selected


def add_parsers(commands: Any) -> None:
    for add in (_add_fork, _add_forks, _add_drop_catalog, _add_tag, _add_untag, _add_retention):
        add(commands)


def _add_fork(commands: Any) -> None:
    parser = commands.add_parser("fork", help="create a catalog with the contents of another one, sharing its files")
    parser.add_argument("parent", metavar="PARENT")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--data-path", help="where its own files go (default: next to those of the parent)")
    parser.add_argument("--as-of", type=int, metavar="SNAPSHOT", help="a snapshot of the parent (default: now)")
    parser.add_argument("--expires-after", metavar="T", help="drop it automatically after 2h, 7d, … (default: never)")
    parser.add_argument("--if-not-exists", action="store_true", help="do nothing if it is already a fork of PARENT")
    parser.set_defaults(run=fork)


def fork(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.catalogs import check_data_path
    from lakefork.catalog.connection import connect
    from lakefork.catalog.forks import existing_catalogs, fork_catalog
    from lakefork.settings import load_settings

    path = arguments.data_path and absolute(arguments.data_path)
    with connect(database()) as connection:
        if path and not existing_catalogs(connection, [arguments.name]):
            from lakefork.storage import places  # importing it takes longer than a fork

            places.check_data_path(path, str(load_settings().home), partial(check_data_path, connection))
        fork = fork_catalog(
            connection,
            arguments.parent,
            arguments.name,
            path,
            as_of=arguments.as_of,
            expires_after=parse_timedelta("--expires-after", arguments.expires_after),
            if_not_exists=arguments.if_not_exists,
        )
    text = f"catalog {fork.name} is a fork of {arguments.parent}; its own files go to {fork.data_path}"
    return respond(arguments, text, vars(fork))


def _add_forks(commands: Any) -> None:
    parser = commands.add_parser("forks", help="show the tree of catalogs with their sizes")
    parser.add_argument("catalog", nargs="?", metavar="CATALOG", help="only this catalog and its descendants")
    parser.add_argument(
        "--reclaim", action="store_true", help="show what dropping CATALOG would free, and which catalogs keep the rest"
    )
    parser.set_defaults(run=forks)


def forks(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.errors import InvalidInputError
    from lakefork.overview.forks import forks_text, list_forks, reclaim_text, reclaimable

    if arguments.reclaim and arguments.catalog is None:
        raise InvalidInputError("--reclaim needs a catalog: lakefork forks CATALOG --reclaim")
    with connect(database()) as connection:
        found = (
            reclaimable(connection, arguments.catalog)
            if arguments.reclaim
            else list_forks(connection, arguments.catalog)
        )
    return respond(arguments, (reclaim_text if arguments.reclaim else forks_text)(found), found)


def _add_drop_catalog(commands: Any) -> None:
    parser = commands.add_parser(
        "drop-catalog",
        help="drop a catalog; retention_gc and file_cleanup delete its files later",
    )
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--prefix", help="instead: all forks whose names begin with this …")
    parser.add_argument("--older-than", default="1s", metavar="T", help="… and that are older than 2h, 7d, …")
    parser.add_argument("--yes", action="store_true", help="do not ask before dropping many")
    parser.set_defaults(run=drop_catalog)


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
    with connect(database()) as connection:
        if arguments.name is not None:
            catalogs = [find_catalog(connection, arguments.name)]
        else:
            age = datetime.timedelta(seconds=seconds_of(arguments.older_than, "--older-than"))
            catalogs = catalogs_to_drop(connection, arguments.prefix, age)
            question = f"drop {len(catalogs)} fork(s) that begin with {arguments.prefix!r}?"
            if not arguments.yes and not confirmed(question, arguments):
                raise InvalidInputError(f"{question} Nothing was dropped; use --yes to skip this question")
        bar = Bar(draw_bar, len(catalogs))
        for dropped in drop_in_chunks(connection, [catalog.catalog_id for catalog in catalogs], getpass.getuser()):
            bar.reach(dropped, f"{dropped:,} of {len(catalogs):,} catalog(s)")
    text = (
        f"{len(catalogs):,} of {len(catalogs):,} catalog(s) dropped\n"
        "their rows stay readable at earlier snapshots until retention_gc; file_cleanup deletes unneeded files"
    )
    return respond(arguments, text, {"dropped": [catalog.name for catalog in catalogs]})


def _add_tag(commands: Any) -> None:
    parser = commands.add_parser("tag", help="tag a snapshot of a catalog, so that it never expires")
    parser.add_argument("catalog", metavar="CATALOG")
    parser.add_argument("snapshot", type=int, metavar="SNAPSHOT")
    parser.add_argument("name", metavar="NAME")
    parser.set_defaults(run=tag)


def tag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import tag_snapshot

    with connect(database()) as connection:
        tag_snapshot(connection, arguments.catalog, arguments.snapshot, arguments.name, author=getpass.getuser())
    text = f"snapshot {arguments.snapshot} of {arguments.catalog} is kept as {arguments.name}"
    return respond(arguments, text, selected(arguments, "catalog", "snapshot", "name"))


def _add_untag(commands: Any) -> None:
    parser = commands.add_parser("untag", help="remove a tag; its snapshot expires by policy")
    parser.add_argument("catalog", metavar="CATALOG")
    parser.add_argument("name", metavar="NAME")
    parser.set_defaults(run=untag)


def untag(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import untag_snapshot

    with connect(database()) as connection:
        untag_snapshot(connection, arguments.catalog, arguments.name)
    text = f"tag {arguments.name} of {arguments.catalog} was removed"
    return respond(arguments, text, selected(arguments, "catalog", "name"))


def _add_retention(commands: Any) -> None:
    parser = commands.add_parser("retention", help="set how long a catalog keeps snapshots; without options: reset")
    parser.add_argument("catalog", metavar="CATALOG")
    parser.add_argument("--for", dest="retain_for", metavar="T", help="keep snapshots younger than 12h, 7d, …")
    parser.add_argument("--snapshots", type=int, metavar="N", help="keep the last N")
    parser.set_defaults(run=retention)


def retention(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.catalog.retention import set_retention
    from lakefork.errors import InvalidInputError

    snapshots, retain_for = arguments.snapshots, arguments.retain_for
    if snapshots is not None and snapshots < 1:
        raise InvalidInputError(f"--snapshots {snapshots}: at least the last one is kept")
    with connect(database()) as connection:
        set_retention(connection, arguments.catalog, snapshots, retain_for)
    kept = [f"snapshots younger than {retain_for}"] if retain_for else []
    kept += [f"the last {snapshots:,}"] if snapshots else []
    text = f"{arguments.catalog} keeps {' and '.join(kept) or 'the snapshots of the settings'}"
    return respond(arguments, text, selected(arguments, "catalog", "retain_for", "snapshots"))


def parse_timedelta(name: str, text: str | None) -> datetime.timedelta | None:
    from lakefork.model.durations import seconds_of

    return None if text is None else datetime.timedelta(seconds=seconds_of(text, name))
