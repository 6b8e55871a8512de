"""Schema files and manifests as they lie in storage: kept for people; a restore writes its own from the catalog."""

import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from lakefork.backups.format import json_bytes
from lakefork.catalog.connection import Connection
from lakefork.cold.schema_files import configs_root
from lakefork.manifests.format import FILE_NAME
from lakefork.queries import load
from lakefork.storage import StorageOptions, read_file
from lakefork.storage.listing import list_tree
from lakefork.storage.paths import path_part, place
from lakefork.transfer.backup.subject import Subject

READ_AT_ONCE = 16


def documents_of(connection: Connection, subject: Subject, storage: StorageOptions) -> bytes:
    """By their paths below the catalog's data path, compressed; the same documents are always the same bytes."""
    root = subject.catalog.data_path
    found = _cached_manifests(connection, subject)
    found |= _read(_schema_files(subject, storage), storage)
    found |= _read((path for path in _manifests(subject) if path not in found), storage)
    above = len(root.rstrip("/")) + 1
    return zlib.compress(json_bytes({path[above:]: text for path, text in found.items() if path.startswith(root)}))


def _cached_manifests(connection: Connection, subject: Subject) -> dict[str, str]:
    """Postgres has most of them, as they were written."""
    tables = [table.table_id for table in subject.with_rows]
    rows = connection.execute(
        load(__package__)["manifests_of_tables"], {"catalog_id": subject.catalog.catalog_id, "tables": tables}
    )
    return {f"{row['directory']}/{FILE_NAME}": row["content"] for row in rows}


def _manifests(subject: Subject) -> Iterable[str]:
    """Where batches lie; a fork shares those of others, which have theirs."""
    directories = {path.rpartition("/")[0] for path in subject.files["path"].to_pylist()}
    root = subject.catalog.data_path
    return sorted(f"{one}/{FILE_NAME}" for one in directories if one.startswith(f"{root}/"))


def _schema_files(subject: Subject, storage: StorageOptions) -> list[str]:
    root = configs_root(subject.catalog.data_path)
    found: list[str] = []
    for namespace in subject.namespaces:
        directory = f"{root}/{path_part(namespace.name)}"
        try:
            listed = [one.path for one in list_tree(directory, storage)]
        except FileNotFoundError:  # not written yet
            continue
        found += [f"{directory}{path.removeprefix(place(directory))}" for path in listed]
    return sorted(path for path in found if path.endswith(".json") and not path.rpartition("/")[2].startswith("."))


def _read(paths: Iterable[str], storage: StorageOptions) -> dict[str, str]:
    """Those that are there."""
    wanted = list(paths)
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        contents = list(pool.map(lambda path: read_file(path, storage), wanted))
    return {path: content.decode() for path, content in zip(wanted, contents, strict=True) if content is not None}
