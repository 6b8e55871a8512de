"""Places of the file system as they are once links are followed."""

import os
from collections.abc import Callable, Iterable, Mapping

from lakefork.errors import InvalidInputError
from lakefork.storage.paths import is_below, place


def resolve(path: str) -> str:
    """The place that a path leads to; also of one that does not exist (yet). S3 has no links."""
    return os.path.realpath(path) if path.startswith("/") else place(path)


def resolve_all(paths: Iterable[str]) -> Mapping[str, str]:
    """By path. Directories above are followed once, as many lie beside each other."""
    above: dict[str, str] = {}
    found = {}
    for path in paths:
        directory, _, name = path.rpartition("/")
        if not path.startswith("/") or not directory:
            found[path] = resolve(path)
            continue
        if directory not in above:
            above[directory] = resolve(directory)
        joined = f"{above[directory].rstrip('/')}/{name}"
        found[path] = resolve(joined) if os.path.islink(joined) else joined  # noqa: PTH114
    return found


def is_within(path: str, directory: str) -> bool:
    return path == directory or is_below(path, directory)


def overlap(one: str, other: str) -> bool:
    return is_within(one, other) or is_within(other, one)


def refuse_home(what: str, path: str, home: str) -> None:
    """Files of tables and LAKEFORK_HOME, where secrets and Postgres are, keep apart; only data in it is for tables."""
    found, private = resolve(path), resolve(home)
    if is_below(found, f"{private}/data") or found == f"{private}/data":
        return
    if path.startswith("/") and overlap(found, private):
        raise InvalidInputError(
            f"{what} {path!r} overlaps LAKEFORK_HOME {home}: give another directory, or one in {home}/data"
        )


def check_data_path(path: str, home: str, check: Callable[[str], None]) -> None:
    """Raises unless a new catalog can have its files there; check is asked for the place to which links lead."""
    refuse_home("data path", path, home)
    if (found := resolve(path)) != place(path):
        check(found)


def check_root(path: str, home: str) -> None:
    """Raises unless tables can be put below it: a directory that exists, and is not a private one of Lakefork."""
    if is_within(resolve(path), resolve(home)):
        refuse_home("root", path, home)
    if path.startswith("/") and not os.path.isdir(path):  # noqa: PTH112
        raise InvalidInputError(f"root {path!r} is not a directory: make it first, or mount what belongs there")
