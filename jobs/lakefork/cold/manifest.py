"""manifest.json: what is in each batch of a directory. The only code that writes or reads it."""

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    path: str
    content: str

    @property
    def etag(self) -> str:
        return hashlib.md5(self.content.encode(), usedforsecurity=False).hexdigest()  # as S3 computes it


def build_manifest(
    directory: str, table_id: int, user_id: str | None, snapshot_id: int, batches: Iterable[Mapping[str, Any]]
) -> Manifest:
    """batches: what lakefork.manifest_batches says; those in other directories are another manifest's business."""
    entries = [_entry(batch, directory) for batch in batches if batch["path"].rpartition("/")[0] == directory]
    document = {
        "format": FORMAT,
        "table_id": table_id,
        "user_id": user_id,
        "snapshot_id": snapshot_id,
        "generated_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "max_batch": max((_number(entry["file"]) for entry in entries), default=-1),
        "batches": entries,
    }
    return Manifest(f"{directory}/{FILE_NAME}", json.dumps(document, ensure_ascii=False))


def _entry(batch: Mapping[str, Any], directory: str) -> dict[str, Any]:
    return {
        "file": batch["path"].removeprefix(f"{directory}/"),
        "data_file_id": batch["data_file_id"],
        "schema_version": batch["schema_version"],
        "status": "active",
        "row_count": batch["row_count"],
        "size_bytes": batch["size_bytes"],
        "min_seq": batch["min_seq"],
        "max_seq": batch["max_seq"],
        "columns": {name: _column(column) for name, column in batch["columns"].items()},
    }


def _column(column: Mapping[str, Any]) -> dict[str, Any]:
    kind = column["type"]
    return {
        "column_id": column["column_id"],
        "min": _value(column["min"], kind),
        "max": _value(column["max"], kind),
        "null_count": column["null_count"],
    }


def _value(text: str | None, kind: str) -> Any:
    """Numbers and booleans as such; everything else as the catalog's text."""
    if text is None:
        return None
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        return float(text) if text.lstrip("-") != "inf" else text
    if kind == "boolean":
        return text == "1"
    return text


def _number(file: str) -> int:
    digits = file.removeprefix("batch-").removesuffix(".parquet")
    return int(digits) if digits.isdecimal() else -1
