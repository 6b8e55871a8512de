"""Resolves links in paths, and checks where new files may go."""

import os
from collections.abc import Callable, Iterable, Mapping

from lakefork.errors import InvalidInputError
from lakefork.storage.paths import is_below, place


def resolve(path: str) -> str:
    """Resolves the links of a path, which need not exist. S3 has no links."""
    return os.path.realpath(path) if path.startswith("/") else place(path)


def resolve_all(paths: Iterable[str]) -> Mapping[str, str]:
    """Resolves many paths; each parent directory is resolved once."""
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


def reject_home(what: str, path: str, home: str) -> None:
    """Raises if a path overlaps LAKEFORK_HOME, which has secrets and Postgres; only its `data` is for tables."""
    found, private = resolve(path), resolve(home)
    if is_below(found, f"{private}/data") or found == f"{private}/data":
        return
    if path.startswith("/") and overlap(found, private):
        raise InvalidInputError(
            f"{what} {path!r} overlaps LAKEFORK_HOME {home}: use another directory, or one in {home}/data"
        )


def check_data_path(path: str, home: str, check: Callable[[str], None]) -> None:
    """Raises unless a new catalog can have its files there; check is called with the resolved path."""
    reject_home("data path", path, home)
    if (found := resolve(path)) != place(path):
        check(found)


def check_root(path: str, home: str) -> None:
    """Raises unless a path can be an allowed root: an existing directory that does not overlap LAKEFORK_HOME."""
    if is_within(resolve(path), resolve(home)):
        reject_home("root", path, home)
    if path.startswith("/") and not os.path.isdir(path):  # noqa: PTH112
        raise InvalidInputError(f"root {path!r} is not a directory: create or mount it first")
