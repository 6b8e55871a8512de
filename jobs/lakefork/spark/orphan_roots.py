"""Which directories of a root cleanup may look at: those with the marker of this installation. Runs in Spark tasks."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.roots import known_files, known_owner
from lakefork.errors import DatabaseError, LakeforkError, StorageError
from lakefork.maintenance.orphans import Root, split_names
from lakefork.storage import StorageOptions
from lakefork.storage.listing import Span, is_there, list_directories, list_tree
from lakefork.storage.markers import RootOwner, claim_root, is_ours

CONFIGS = "configs"  # what a catalog keeps besides its tables (cold/schema_files.py)
READ_AT_ONCE = 16


@dataclass(frozen=True)
class Part:
    """What one task lists, together with others: a directory of a root, or a part of one."""

    root: Root
    path: str
    span: Span


@dataclass(frozen=True)
class Surveyed:
    """A root as it was found. real: where links lead; parts: what to list; unmarked: directories with others' files."""

    place: str
    real: str | None
    parts: tuple[Part, ...] = ()
    unmarked: tuple[str, ...] = ()


def survey_root(
    dsn: str, installation: str, storage: StorageOptions, root: Root, *, listed: bool
) -> Surveyed | LakeforkError:
    """Whether the right storage is there, and what to list; only where links lead, if it is not listed."""
    is_local = root.place.startswith("/")
    if is_local:
        root = replace(root, real=os.path.realpath(root.path))
    if not listed:
        return Surveyed(root.place, root.real)
    try:
        if root.samples and not any(is_there(sample, storage) for sample in root.samples):
            return StorageError(
                f"{root.place} has none of the {len(root.samples)} newest files that the catalog has there: "
                "is the right storage mounted?"
            )
        if is_local and not os.path.isdir(root.path):  # noqa: PTH112
            return Surveyed(root.place, root.real)  # nothing was ever written
        return _survey(dsn, installation, storage, root)
    except OSError as error:
        return StorageError(f"{root.place} cannot be listed: {str(error).splitlines()[0]}")
    except psycopg.Error as error:
        return DatabaseError(f"Postgres: {str(error).splitlines()[0]}")
    except LakeforkError as error:
        return error


def _survey(dsn: str, installation: str, storage: StorageOptions, root: Root) -> Surveyed:
    directories = list(_directories(root, storage))
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        marked = list(pool.map(lambda path: is_ours(path, installation, storage), directories))
    ours = [path for path, is_marked in zip(directories, marked, strict=True) if is_marked]
    others = [path for path, is_marked in zip(directories, marked, strict=True) if not is_marked]
    if others:
        adopted = _adopt(dsn, installation, storage, others)
        ours += adopted
        others = [path for path in others if path not in adopted and next(list_tree(path, storage), None)]
    bare = replace(root, samples=())
    parts = (
        Part(bare, path, Span(first, until))
        for path in ours
        for first, until in split_names(list_directories(path, storage))
    )
    return Surveyed(root.place, root.real, tuple(parts), tuple(others))


def _directories(root: Root, storage: StorageOptions) -> Iterator[str]:
    """That could have a marker: of tables, and what the catalog keeps besides them. Others' roots are left to them."""
    if root.location is not None:
        yield root.path
        return
    for name in list_directories(root.path, storage):
        path = f"{root.path.rstrip('/')}/{name}"
        if name == CONFIGS:
            yield path
        elif not name.startswith(".") and place_in(root, path) not in root.inner:
            below = (f"{path}/{table}" for table in list_directories(path, storage))
            yield from (directory for directory in below if place_in(root, directory) not in root.inner)


def place_in(root: Root, path: str) -> str:
    return root.place + path[len(root.path) :]


def _adopt(dsn: str, installation: str, storage: StorageOptions, directories: Sequence[str]) -> set[str]:
    """Those that the catalog knows by files that are there: they are from before there were markers."""
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        return {path for path in directories if _is_adopted(connection, installation, storage, path)}


def _is_adopted(connection: object, installation: str, storage: StorageOptions, path: str) -> bool:
    owner = known_owner(connection, path)
    if owner is None:
        return False
    try:
        claim_root(path, RootOwner(installation, *owner), storage, lambda: known_files(connection, path))
    except StorageError:
        return False
    return True
