"""Writes configs/<namespace>/ from the catalog: schema files and the namespace's manifest."""

import datetime
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.model.column_types import ColumnType
from lakefork.model.tables import Column, TableDefinition
from lakefork.storage import StorageOptions, list_files, replace_file
from lakefork.storage.paths import path_part
from lakefork.storage.removal import remove_empty_directories, remove_many

_SCHEMA_NAME = re.compile(r"(schema_v\d+|current)\.json")


@dataclass(frozen=True)
class TableEntry:
    """An entry of a namespace's manifest."""

    name: str
    kind: str
    version: int
    created_at: datetime.datetime
    updated_at: datetime.datetime


def configs_root(root: str) -> str:
    """Returns the directory of all schema files below a data path; it has its own marker."""
    return f"{root}/configs"


def schema_path(namespace: str, table: str, version: int | None = None) -> str:
    """Returns the path of a schema file below the data path; without a version, that of the current one."""
    name = "current" if version is None else f"schema_v{version}"
    return f"configs/{path_part(namespace)}/schemas/{path_part(table)}/{name}.json"


def manifest_path(namespace: str) -> str:
    return f"configs/{path_part(namespace)}/manifest.json"


def write_table_schemas(
    root: str, options: StorageOptions, definitions: Sequence[tuple[TableDefinition, datetime.datetime]]
) -> None:
    """Writes one file per definition, oldest first, and current.json with the last."""
    for definition, created_at in definitions:
        path = schema_path(definition.namespace, definition.name, definition.version)
        replace_file(f"{root}/{path}", _content(definition, created_at), options)
    definition, created_at = definitions[-1]
    replace_file(
        f"{root}/{schema_path(definition.namespace, definition.name)}", _content(definition, created_at), options
    )


def write_manifest(root: str, options: StorageOptions, namespace: str, tables: Iterable[TableEntry]) -> None:
    entries = {
        table.name: {
            "current_version": table.version,
            "path": schema_path(namespace, table.name, table.version).removeprefix(f"configs/{path_part(namespace)}/"),
            "table_type": table.kind.lower(),
            "created_at": _time(table.created_at),
            "updated_at": _time(table.updated_at),
        }
        for table in tables
    }
    replace_file(f"{root}/{manifest_path(namespace)}", _json(entries), options)


def remove_table_schemas(root: str, options: StorageOptions, namespace: str, table: str) -> None:
    """Removes a table's schema files, and no other files."""
    directory = f"{root}/{schema_path(namespace, table)}".rpartition("/")[0]
    names = [name for name in list_files(directory, options) if _SCHEMA_NAME.fullmatch(name)]
    remove_many([f"{directory}/{name}" for name in names], options)
    remove_empty_directories([], directory)


def remove_manifest(root: str, options: StorageOptions, namespace: str) -> None:
    """Removes the manifest of a dropped namespace, and its directories if they are empty."""
    path = f"{root}/{manifest_path(namespace)}"
    remove_many([path], options)
    directory = path.rpartition("/")[0]
    remove_empty_directories([f"{directory}/schemas"], directory)


def _content(definition: TableDefinition, created_at: datetime.datetime) -> bytes:
    key = [column.name for column in definition.key]
    fields = [_field(column, key) for column in definition.columns]
    fields += [_field(column, key, system=True) for column in definition.system_columns]
    return _json(
        {
            "version": definition.version,
            "created_at": _time(created_at),
            "table_id": definition.table_id,
            "snapshot_id": definition.definition_snapshot,
            "table_type": definition.kind.lower(),
            "primary_key": key,
            "arrow_schema": {"fields": fields},
        }
    )


def _field(column: Column, key: list[str], *, system: bool = False) -> dict[str, Any]:
    metadata = {"column_id": str(column.column_id), "type": column.type.name}
    metadata |= {"system_column": "true"} if system else {}
    metadata |= {"primary_key": "true"} if column.name in key and not system else {}
    metadata |= {"default": column.default} if column.default is not None else {}
    metadata |= {"initial_default": column.initial_default} if column.initial_default is not None else {}
    return {"name": column.name, "type": _arrow_type(column.type), "nullable": column.nullable, "metadata": metadata}


def _arrow_type(kind: ColumnType) -> dict[str, Any]:
    """Returns a type in Arrow's JSON format."""
    if kind.element:
        return {"name": "list", "children": [{"name": "element", "type": _arrow_type(kind.element), "nullable": True}]}
    if kind.digits:
        return {"name": "decimal", "precision": kind.digits[0], "scale": kind.digits[1], "bitWidth": 128}
    return dict(_ARROW_TYPES[kind.name])


_ARROW_TYPES: dict[str, dict[str, Any]] = {
    "boolean": {"name": "bool"},
    "int16": {"name": "int", "bitWidth": 16, "isSigned": True},
    "int32": {"name": "int", "bitWidth": 32, "isSigned": True},
    "int64": {"name": "int", "bitWidth": 64, "isSigned": True},
    "float32": {"name": "floatingpoint", "precision": "SINGLE"},
    "float64": {"name": "floatingpoint", "precision": "DOUBLE"},
    "varchar": {"name": "utf8"},
    "blob": {"name": "binary"},
    "date": {"name": "date", "unit": "DAY"},
    "time": {"name": "time", "unit": "MICROSECOND", "bitWidth": 64},
    "timestamp": {"name": "timestamp", "unit": "MICROSECOND"},
    "timestamptz": {"name": "timestamp", "unit": "MICROSECOND", "timezone": "UTC"},
    "uuid": {"name": "fixedsizebinary", "byteWidth": 16},
    "json": {"name": "utf8"},
}


def _time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
