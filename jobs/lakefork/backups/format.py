"""What lies at a place of backups: a manifest per backup, and files that are named by their SHA-256.

.lakefork-backups.json           whose place it is
backups/<backup id>/backup.json  the manifest; written last: without it there is no backup
files/<xx>/<sha-256>             batches, lists of batches, definitions
"""

import datetime
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from lakefork.errors import LakeforkError, one_line

FORMAT = 1
HOT_SNAPSHOT = 1 << 62  # as which files of rows that were hot are listed: after all others
MARKER = ".lakefork-backups.json"
MANIFEST = "backup.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}")

LIST_SCHEMA = pa.schema(
    [
        ("digest", pa.string()), ("file_size_bytes", pa.int64()), ("record_count", pa.int64()),
        ("footer_size", pa.int64()), ("user_id", pa.string()), ("snapshot", pa.int64()),
        ("data_file_id", pa.int64()), ("statistics", pa.string()),
    ]
)  # fmt: skip


class DamagedBackupError(LakeforkError):
    """A backup is not whole, or not what was written."""

    code = "damaged_backup"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Stored(Frozen):
    """A file at the place."""

    digest: str
    size: int


class BackedUpTable(Frozen):
    """digest: of its rows, definitions and options, wherever it is; batches: the list of its files."""

    namespace: str
    name: str
    kind: str
    rows: int
    files: int
    bytes: int
    digest: str
    batches: Stored | None = None


class BackupManifest(Frozen):
    """namespace: None if it holds all of a catalog."""

    format: int = FORMAT
    lakefork: str
    backup_id: str
    installation: str
    catalog: str
    namespace: str | None
    namespaces: tuple[str, ...]
    taken_at: datetime.datetime
    snapshot_id: int
    base: str | None
    tables: tuple[BackedUpTable, ...]
    definitions: Stored
    documents: Stored
    marker: Stored
    rows: int
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int

    @property
    def subject(self) -> tuple[str, str, str | None]:
        """What it is a backup of."""
        return self.installation, self.catalog, self.namespace

    @property
    def parts(self) -> list[Stored]:
        """Files of the backup itself, which say what else belongs to it."""
        return [self.definitions, self.documents, *(table.batches for table in self.tables if table.batches)]

    def __str__(self) -> str:
        return f"{self.catalog}{f'.{self.namespace}' if self.namespace else ''}"


def manifest_bytes(manifest: BackupManifest) -> bytes:
    """The digest of what follows it comes first: whichever byte changes, one of both does not fit."""
    body = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return _with_digest(body.encode())


def parse_manifest(content: bytes, where: str) -> BackupManifest:
    if _with_digest(b"{" + content[len(_with_digest(b"{")) :]) != content:
        raise DamagedBackupError(f"the manifest {where} is damaged: it is not what was written")
    found = json.loads(content)
    del found["sha256"]
    if found.get("format", 0) > FORMAT:
        raise DamagedBackupError(
            f"the backup {where} has format {found['format']}, and this Lakefork reads up to {FORMAT}: "
            f"use Lakefork {found.get('lakefork', 'of a later version')}"
        )
    try:
        return BackupManifest.model_validate(found)
    except ValidationError as error:
        detail = error.errors()[0]
        raise DamagedBackupError(
            one_line(f"the manifest {where} cannot be understood: {'.'.join(map(str, detail['loc']))}: {detail['msg']}")
        ) from None


def _with_digest(body: bytes) -> bytes:
    return b'{"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:]


def list_bytes(batches: pa.Table) -> bytes:
    """The same rows are always the same bytes, so that an unchanged list is not stored again."""
    content = io.BytesIO()
    pq.write_table(batches.cast(LIST_SCHEMA).combine_chunks(), content, compression="zstd", store_schema=False)
    return content.getvalue()


def parse_list(content: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(content)).select(LIST_SCHEMA.names).cast(LIST_SCHEMA)


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str).encode()


def file_path(place: str, digest: str) -> str:
    return f"{place}/files/{digest[:2]}/{digest}"


def manifest_path(place: str, backup_id: str) -> str:
    return f"{place}/backups/{backup_id}/{MANIFEST}"


def split_place(path: str) -> tuple[str, str | None]:
    """The place that a path names, and the backup if it names one: PLACE or PLACE/backups/ID."""
    above, _, backup_id = path.rstrip("/").removesuffix(f"/{MANIFEST}").rpartition("/")
    if _ID.fullmatch(backup_id) and above.endswith("/backups"):
        return above.removesuffix("/backups"), backup_id
    return path.rstrip("/"), None


def is_digest(name: str) -> bool:
    return bool(_DIGEST.fullmatch(name))


def is_leftover(name: str) -> bool:
    """What a writer that died leaves beside the files."""
    return bool(re.fullmatch(r"\.([0-9a-f]{64}\.)?[0-9a-f]{32}", name))


def table_digest(
    definition: Any, history: Sequence[tuple[int, Any]], files: Iterable[tuple[str, int, str, int]]
) -> str:
    """Equal for tables with equal rows, definitions and options, whatever numbers and names a catalog gave them.

    history: snapshot and old definition, oldest first; files: owner, snapshot, digest and rows, in any order.
    """
    listed = sorted(files)
    numbers = sorted({snapshot for snapshot, _ in history} | {snapshot for _, snapshot, _, _ in listed})
    rank = {number: place for place, number in enumerate(numbers)}
    digest = hashlib.sha256(json_bytes([definition, [(rank[snapshot], old) for snapshot, old in history]]))
    for owner, snapshot, content, rows in listed:
        digest.update(json_bytes([owner, rank[snapshot], content, rows]))
    return digest.hexdigest()
