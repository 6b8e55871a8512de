"""Which places backups may be written to and read from: below an allowed root, and apart from the files of tables."""

import os

from lakefork.backups.format import split_place
from lakefork.backups.place import Place
from lakefork.catalog.backups import location_credentials, overlapping_data
from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import allowed_root_above, data_paths, list_roots
from lakefork.errors import InvalidInputError
from lakefork.storage import StorageOptions
from lakefork.storage.credentials import require_allowed
from lakefork.storage.paths import credentials_of, normal_path, place, with_credentials
from lakefork.storage.places import is_within, overlap, reject_home, resolve, resolve_all


def open_place(
    connection: Connection, catalog: Catalog, path: str, home: str, storage: StorageOptions
) -> tuple[Place, str | None]:
    """The place that a path names, and the backup if it names one; raises if backups cannot be there.

    S3 is opened with the credentials of the catalog's storage location that holds the path, if there is one.
    """
    _check_form(path)
    where, backup_id = split_place(normal_path(path))
    reject_home("the place of backups", where, home)
    _check_root(connection, where)
    _check_data(connection, where)
    credentials = location_credentials(connection, catalog.catalog_id, where) if where.startswith("s3://") else None
    if credentials:
        require_allowed(credentials, catalog.name)
        where = with_credentials(where, credentials)
    return Place(where, storage), backup_id


def _check_form(path: str) -> None:
    found = normal_path(path)
    if not found.startswith(("/", "s3://")) or {".", ".."} & set(found.split("/")) or "$" in found:
        raise InvalidInputError(
            f"the place of backups {path!r} must be absolute (/… or s3://bucket/…), without variables and . or .. as a "
            "part"
        )
    if credentials_of(found):
        raise InvalidInputError(
            f"the place of backups {path!r} names credentials: those of the storage location that holds it are used"
        )


def _check_root(connection: Connection, where: str) -> None:
    root = allowed_root_above(connection, where)
    roots = [one.path for one in list_roots(connection)]
    if root is None:
        listed = ", ".join(roots) or "there is none"
        raise InvalidInputError(
            f"the place of backups {where!r} is not below an allowed root ({listed}): the operator allows one with "
            "`lakefork roots add`"
        )
    if not where.startswith("/"):
        return
    if not os.path.isdir(root):  # noqa: PTH112
        raise InvalidInputError(f"the root {root} of {where!r} does not exist; is the storage mounted?")
    if not any(is_within(resolve(where), resolve(one)) for one in (root, *roots)):
        raise InvalidInputError(
            f"the place of backups {where!r} leads out of the allowed root {root} by a link, to {resolve(where)}"
        )


def _check_data(connection: Connection, where: str) -> None:
    """Cleanup looks for files that nobody needs below data paths and LOCATIONs."""
    if taken := overlapping_data(connection, place(resolve(where))):
        raise InvalidInputError(f"the place of backups {where!r} overlaps {taken}: give a directory of its own")
    known = [path for _, path in data_paths(connection)]
    found = resolve(where)
    for path, real in resolve_all(known).items():
        if overlap(found, real):
            raise InvalidInputError(f"the place of backups {where!r} overlaps the data path {path}")
