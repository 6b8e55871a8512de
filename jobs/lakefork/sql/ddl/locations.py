"""Checks LOCATIONs: below allowed roots, not overlapping, without files of others."""

import os

from lakefork.catalog.catalogs import Catalog
from lakefork.catalog.connection import Connection
from lakefork.catalog.roots import allowed_root_above, data_paths, installation_id, known_files, list_roots
from lakefork.errors import ConflictError, ForeignFilesError, InvalidInputError
from lakefork.sql.ddl.options import locations_overlap, static_part
from lakefork.storage import StorageOptions, require_access
from lakefork.storage.markers import require_usable
from lakefork.storage.paths import without_credentials
from lakefork.storage.places import is_within, overlap, reject_home, resolve, resolve_all


def check_new_location(
    connection: Connection, catalog: Catalog, location: str, home: str, storage: StorageOptions
) -> None:
    """Raises unless a table can be placed there; creates the directory and tries to write to it."""
    root = static_part(location)
    check_allowed(connection, location, home)
    _reject_tables(connection, catalog, location)
    _reject_data_paths(connection, catalog, location)
    _reject_foreign_files(connection, location, root, storage)
    require_access(root, storage)


def check_allowed(connection: Connection, location: str, home: str) -> None:
    """Raises unless the directory lies below an allowed root, also once links are followed; a missing tree is made
    nowhere else.
    """
    path = without_credentials(static_part(location))
    reject_home("LOCATION", path, home)
    root = allowed_root_above(connection, path)
    if root is None:
        listed = ", ".join(one.path for one in list_roots(connection)) or "none is allowed"
        raise InvalidInputError(
            f"LOCATION {location!r} is not below an allowed root ({listed}): the operator can allow one with "
            "`lakefork roots add`"
        )
    if path.startswith("/"):
        _check_directories(connection, location, path, root)


def _check_directories(connection: Connection, location: str, path: str, root: str) -> None:
    if not os.path.isdir(root):  # noqa: PTH112
        raise InvalidInputError(f"LOCATION {location!r}: its root {root} does not exist; is the storage mounted?")
    found = resolve(path)
    if not any(is_within(found, resolve(one)) for one in (root, *(one.path for one in list_roots(connection)))):
        raise InvalidInputError(f"LOCATION {location!r} leads out of the allowed root {root} by a link, to {found}")


def _reject_tables(connection: Connection, catalog: Catalog, location: str) -> None:
    mine = _followed(location)
    for row in connection.execute("SELECT * FROM lakefork.table_locations()"):
        if locations_overlap(mine, _followed(row["location"])):
            is_own = row["catalog_id"] == catalog.catalog_id
            whose = f"table {row['namespace']}.{row['table_name']}" if is_own else "a table of another catalog"
            raise ConflictError(f"LOCATION {location!r} belongs to {whose}")


def _followed(location: str) -> str:
    """Resolves links in the part of a path that does not depend on the user."""
    plain = without_credentials(location)
    root = static_part(plain)
    return resolve(root) + plain[len(root) :]


def _reject_data_paths(connection: Connection, catalog: Catalog, location: str) -> None:
    path = resolve(without_credentials(static_part(location)))
    known = data_paths(connection)
    places = resolve_all(data_path for _, data_path in known)
    for catalog_id, data_path in known:
        if overlap(path, places[data_path]):
            whose = "the catalog: omit LOCATION" if catalog_id == catalog.catalog_id else "another catalog"
            raise InvalidInputError(f"LOCATION {location!r} overlaps the data path of {whose}")


def _reject_foreign_files(connection: Connection, location: str, root: str, storage: StorageOptions) -> None:
    try:
        require_usable(root, installation_id(connection), storage, lambda: known_files(connection, root))
    except ForeignFilesError as error:
        raise InvalidInputError(f"LOCATION {location!r} cannot be used: {error}") from None
    except OSError as error:
        raise InvalidInputError(f"{root} cannot be written to: {str(error).splitlines()[0]}") from None
