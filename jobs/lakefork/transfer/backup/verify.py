"""Finds what is wrong with a backup: manifest, presence, sizes, contents, footers and row counts."""

import random
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefork.backups.format import BackupManifest, DamagedBackupError, Stored, file_path, parse_list
from lakefork.backups.place import Listing, Place
from lakefork.errors import InvalidInputError, NotFoundError, os_reason
from lakefork.storage import open_path
from lakefork.storage.copying import read_content

READ_AT_ONCE = 4


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file of a backup."""

    digest: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


@dataclass(frozen=True)
class Verified:
    """What a look at a backup found. read: of how many of its files the content was read."""

    backup_id: str
    files: int
    read: int
    bytes_read: int
    problems: tuple[str, ...]

    @property
    def percent(self) -> float:
        return round(100 * self.read / self.files, 1) if self.files else 100.0


@dataclass(frozen=True)
class _Batch:
    stored: Stored
    rows: int


def verify_place(
    place: Place, backup_id: str | None, percent: float = 100.0, seed: int | None = None
) -> Iterator[Verified]:
    """One backup, or all of a place, the newest first; a file that several have is read once."""
    listing = place.listing()
    wanted = sorted(listing.manifests, reverse=True) if backup_id is None else [backup_id]
    if not wanted:
        raise NotFoundError(f"there is no backup at {place.path}")
    known: dict[str, Problem | None] = {}
    for one in wanted:
        try:
            yield verify_backup(place, one, percent, seed, known)
        except (DamagedBackupError, NotFoundError) as error:
            yield Verified(one, 1, 1, 0, (str(error),))


def verify_backup(
    place: Place,
    backup_id: str,
    percent: float = 100.0,
    seed: int | None = None,
    known: dict[str, Problem | None] | None = None,
) -> Verified:
    """Presence and size of every file, content of the backup's own parts, and of so many percent of the others.

    known: what was found of files before.
    """
    manifest = place.read_manifest(backup_id)
    known = {} if known is None else known
    problems: list[str] = []
    if place.marker() != manifest.marker:
        problems.append(f"the marker of {place.path} is missing or damaged")
    parts = manifest.parts
    damaged = check_content(place, parts)
    problems += map(str, damaged)
    batches = list(_batches(place, manifest, {one.digest for one in damaged}, problems))
    listing = place.listing()
    problems += map(str, _check_presence(place, listing, [one.stored for one in batches]))
    present = [one for one in batches if listing.has(one.stored)]
    chosen = _sample(present, percent, seed)
    new = [one for one in chosen if one.stored.digest not in known]
    found = check_content(place, [one.stored for one in new])
    wrong = {one.digest for one in found}
    found += _check_rows(place, [one for one in new if one.stored.digest not in wrong])
    known |= {one.stored.digest: None for one in new} | {one.digest: one for one in reversed(found)}
    problems += [str(problem) for one in chosen if (problem := known[one.stored.digest])]
    size = sum(one.size for one in parts) + sum(one.stored.size for one in chosen)
    return Verified(
        backup_id, len(parts) + len(batches), len(parts) + len(chosen), size, tuple(dict.fromkeys(problems))
    )


def _batches(place: Place, manifest: BackupManifest, damaged: set[str], problems: list[str]) -> Iterator[_Batch]:
    """Each file once, as lists of batches name it; the totals of each table must fit."""
    seen: set[str] = set()
    for table in manifest.tables:
        if table.batches is None or table.batches.digest in damaged:
            continue
        listed = parse_list(place.read_part(table.batches))
        rows, sizes = listed["record_count"].to_pylist(), listed["file_size_bytes"].to_pylist()
        if (sum(rows), len(rows), sum(sizes)) != (table.rows, table.files, table.bytes):
            problems.append(f"the files of {table.namespace}.{table.name} are not those of the manifest")
        for digest, size, count in zip(listed["digest"].to_pylist(), sizes, rows, strict=True):
            if digest not in seen:
                seen.add(digest)
                yield _Batch(Stored(digest=digest, size=size), count)


def _check_presence(place: Place, listing: Listing, wanted: Iterable[Stored]) -> Iterator[Problem]:
    for one in wanted:
        found = listing.files.get(one.digest)
        path = file_path(place.path, one.digest)
        if found is None:
            yield Problem(one.digest, path, "is missing")
        elif found.size_bytes != one.size:
            yield Problem(one.digest, path, f"has {found.size_bytes:,} bytes instead of {one.size:,}")


def check_content(place: Place, wanted: Sequence[Stored]) -> list[Problem]:
    """Reads each file; what differs from what was written."""

    def check(one: Stored) -> Problem | None:
        path = file_path(place.path, one.digest)
        try:
            found = read_content(path, place.storage)
        except FileNotFoundError:
            return Problem(one.digest, path, "is missing")
        except OSError as error:
            return Problem(one.digest, path, f"cannot be read: {os_reason(error)}")
        return (
            None if found.digest == one.digest else Problem(one.digest, path, "is damaged: it is not what was written")
        )

    return _in_threads(check, wanted)


def _check_rows(place: Place, batches: Sequence[_Batch]) -> list[Problem]:
    """By the footers, which must be readable."""

    def check(one: _Batch) -> Problem | None:
        path = file_path(place.path, one.stored.digest)
        filesystem, inner = open_path(path, place.storage)
        try:
            with filesystem.open_input_file(inner) as file:
                rows = pq.read_metadata(file).num_rows
        except FileNotFoundError:
            return Problem(one.stored.digest, path, "is missing")
        except (OSError, ValueError, pa.ArrowException) as error:
            return Problem(one.stored.digest, path, f"is no Parquet file: {str(error).splitlines()[0]}")
        if rows != one.rows:
            return Problem(one.stored.digest, path, f"has {rows:,} rows instead of {one.rows:,}")
        return None

    return _in_threads(check, batches)


def _in_threads(check: Any, items: Sequence[Any]) -> list[Problem]:
    if len(items) < 8:
        return [found for found in map(check, items) if found]
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        return [found for found in pool.map(check, items) if found]


def _sample(batches: Sequence[_Batch], percent: float, seed: int | None) -> Sequence[_Batch]:
    """At least one, if anything is wanted at all; everything at 100."""
    if percent >= 100:
        return batches
    count = min(len(batches), -(-int(len(batches) * percent) // 100) or 1)
    return random.Random(seed).sample(list(batches), count)  # noqa: S311 - nobody gains by knowing it


def parse_percent(text: str) -> float:
    """10% or 10."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1
    if not 0 < percent <= 100:
        raise InvalidInputError(f"--sample {text!r}: give a share such as 10%")
    return percent
