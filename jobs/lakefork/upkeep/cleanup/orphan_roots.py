"""Finds the directories that cleanup may list: those with the marker of this installation. Runs in Spark tasks."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import psycopg
from psycopg.rows import dict_row

from lakefork.catalog.roots import known_files, known_owner
from lakefork.errors import DatabaseError, LakeforkError, StorageError
from lakefork.storage import StorageOptions
from lakefork.storage.installation import Installation
from lakefork.storage.listing import Span, list_directories, list_tree, path_exists
from lakefork.storage.markers import RootOwner, claim_root, is_ours
from lakefork.upkeep.cleanup.orphan_plan import Root, split_names

CONFIGS = "configs"  # files of the catalog itself (cold/schema_files.py)
READ_AT_ONCE = 16


@dataclass(frozen=True)
class Part:
    """A unit of listing: a directory of a root, or a part of one."""

    root: Root
    path: str
    span: Span


@dataclass(frozen=True)
class RootSurvey:
    """The survey of a root. real: its resolved path; parts: what to list; unmarked: directories of others."""

    place: str
    real: str | None
    parts: tuple[Part, ...] = ()
    unmarked: tuple[str, ...] = ()


def survey_root(installation: Installation, identity: str, root: Root, *, listed: bool) -> RootSurvey | LakeforkError:
    """Checks that the right storage is mounted and returns what to list; only the resolved path if it is not listed."""
    is_local = root.place.startswith("/")
    if is_local:
        root = replace(root, real=os.path.realpath(root.path))
    if not listed:
        return RootSurvey(root.place, root.real)
    try:
        if root.samples and not any(path_exists(sample, installation.storage) for sample in root.samples):
            return StorageError(
                f"{root.place} has none of the {len(root.samples)} newest files that the catalog has there: "
                "is the right storage mounted?"
            )
        if is_local and not os.path.isdir(root.path):  # noqa: PTH112
            return RootSurvey(root.place, root.real)  # nothing was ever written
        return _survey(installation, identity, root)
    except OSError as error:
        return StorageError(f"{root.place} cannot be listed: {str(error).splitlines()[0]}")
    except psycopg.Error as error:
        return DatabaseError(f"Postgres: {str(error).splitlines()[0]}")
    except LakeforkError as error:
        return error


def _survey(installation: Installation, identity: str, root: Root) -> RootSurvey:
    storage = installation.storage
    directories = list(_directories(root, storage))
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        marked = list(pool.map(lambda path: is_ours(path, identity, storage), directories))
    ours = [path for path, is_marked in zip(directories, marked, strict=True) if is_marked]
    others = [path for path, is_marked in zip(directories, marked, strict=True) if not is_marked]
    if others:
        adopted = _adopt(installation, identity, others)
        ours += adopted
        others = [path for path in others if path not in adopted and next(list_tree(path, storage), None)]
    bare = replace(root, samples=())
    parts = (
        Part(bare, path, Span(first, until))
        for path in ours
        for first, until in split_names(list_directories(path, storage))
    )
    return RootSurvey(root.place, root.real, tuple(parts), tuple(others))


def _directories(root: Root, storage: StorageOptions) -> Iterator[str]:
    """Yields directories that may have a marker: those of tables and of the catalog, without inner roots."""
    if root.location is not None:
        yield root.path
        return
    for name in list_directories(root.path, storage):
        path = f"{root.path.rstrip('/')}/{name}"
        if name == CONFIGS:
            yield path
        elif not name.startswith(".") and canonical_path_in(root, path) not in root.inner:
            below = (f"{path}/{table}" for table in list_directories(path, storage))
            yield from (directory for directory in below if canonical_path_in(root, directory) not in root.inner)


def canonical_path_in(root: Root, path: str) -> str:
    return root.place + path[len(root.path) :]


def _adopt(installation: Installation, identity: str, directories: Sequence[str]) -> set[str]:
    """Adopts directories with files that the catalog knows, from before markers existed."""
    with psycopg.connect(installation.dsn, autocommit=True, row_factory=dict_row) as connection:
        return {path for path in directories if _is_adopted(connection, identity, installation.storage, path)}


def _is_adopted(connection: object, identity: str, storage: StorageOptions, path: str) -> bool:
    owner = known_owner(connection, path)
    if owner is None:
        return False
    try:
        claim_root(path, RootOwner(identity, *owner), storage, lambda: known_files(connection, path))
    except StorageError:
        return False
    return True
