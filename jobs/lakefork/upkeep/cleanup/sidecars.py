"""What goes with the last files of tables and catalogs: manifests beside them, and schema files."""

import contextlib
from collections.abc import Iterable, Iterator

from lakefork.catalog.connection import Connection
from lakefork.cold.schema_files import configs_root
from lakefork.storage import StorageOptions
from lakefork.storage.listing import list_tree
from lakefork.storage.paths import place
from lakefork.upkeep.cleanup.orphan_plan import MANIFEST, is_schema_file


def manifests_beside(paths: Iterable[str]) -> list[str]:
    """Of the directories in which files were removed; whether a table still needs them is for the catalogs to say."""
    return sorted({f"{path.rpartition('/')[0]}/{MANIFEST}" for path in paths})


def forgotten_schema_files(connection: Connection, storage: StorageOptions) -> Iterator[tuple[int, dict[str, int]]]:
    """Catalogs that are forgotten, with sizes of their schema files by path; each until it is marked as looked at."""
    for row in connection.execute("SELECT * FROM lakefork.forgotten_configs()").fetchall():
        root = row["data_path"]
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for file in list_tree(configs_root(root), storage):
                below = file.path[len(place(root)) + 1 :]
                if is_schema_file(below):
                    found[f"{root}/{below}"] = file.size_bytes
        yield row["catalog_id"], found
