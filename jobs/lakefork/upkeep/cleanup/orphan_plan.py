"""Plans the search for orphans: which directories to list, what to ask the catalogs, and which files nobody needs."""

import datetime
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

MANIFEST = "manifest.json"
MARKER = ".lakefork-root.json"  # as in storage/markers.py
WIDE = 1_000  # a task lists this many subdirectories

# Files of the catalog itself below its data path (cold/schema_files.py).
_CONFIGS = re.compile(r"configs/[^/]+/(manifest|schemas/[^/]+/(schema_v\d+|current))\.json")
_TRASH = re.compile(r"(.*/)?\.trash/\d{4}-\d\d-\d\d/.*")  # next to the files if their root has expired or is a LOCATION
_QUARANTINE = re.compile(r"(.*/\.quarantine/[^/]+)/.*")
_TEMPORARY = re.compile(r"(.*/)\.([^/]+)\.[0-9a-f]{32}")
_WHOSE = "the owners of the files are unknown"
# Names that jobs write. Other files belong to somebody else, as people put notes and copies next to files.
_OURS = re.compile(r"(.*/)?\.?(batch-(0|[1-9]\d*)\.parquet|manifest\.json)(\.[0-9a-f]{32})?")
_OUR_SCHEMA_FILES = re.compile(
    r"configs/[^/]+/(schemas/[^/]+/)?\.?(manifest|schema_v\d+|current)\.json(\.[0-9a-f]{32})?"
)


@dataclass(frozen=True)
class Root:
    """A directory with files of a catalog, or of a table with a LOCATION.

    path: with the name of credentials, if any; place: without. location: a pattern of the directories that a LOCATION
    stands for. known: there are still rows of the catalog. samples: files that must be there. inner: other roots within
    it, which are listed on their own. real: where links at or above it lead.
    """

    path: str
    place: str
    catalog_ids: tuple[int, ...]
    location: str | None
    known: bool
    samples: tuple[str, ...]
    inner: tuple[str, ...] = ()
    real: str | None = None

    def is_of(self, catalog_ids: Collection[int]) -> bool:
        return not set(self.catalog_ids).isdisjoint(catalog_ids)


@dataclass(frozen=True)
class Orphan:
    """path and root: normal paths, with the name of credentials that open them, if any."""

    path: str
    size_bytes: int
    modified: datetime.datetime
    root: str


@dataclass(frozen=True)
class Claims:
    """What the catalogs know of paths and directories; names of claims as in lakefork.claims."""

    by_path: Mapping[str, Collection[str]]

    def has(self, path: str, *claims: str) -> bool:
        return any(claim in claims for claim in self.by_path.get(path, ()))


def plan_roots(found: Iterable[Root]) -> list[Root]:
    """Returns each directory once, with the roots inside it; one that several catalogs used in turn belongs to all."""
    by_place: dict[str, list[Root]] = defaultdict(list)
    for root in found:
        by_place[root.place].append(root)
    inner: dict[str, list[str]] = defaultdict(list)
    for place in by_place:
        for above in _parents(place):
            inner[above].append(place)
    return [replace(_merge(roots), inner=tuple(inner[place])) for place, roots in by_place.items()]


def _merge(roots: Sequence[Root]) -> Root:
    data_paths = [root for root in roots if root.location is None]
    patterns = dict.fromkeys(root.location for root in roots if root.location is not None)
    return replace(
        (data_paths or roots)[0],
        location=None if data_paths else f"(?:{'|'.join(patterns)})",
        catalog_ids=tuple(catalog for root in roots for catalog in root.catalog_ids),
        known=any(root.known for root in roots),
        samples=tuple(sample for root in roots for sample in root.samples),
    )


def find_linked_roots(real_paths: Mapping[str, str]) -> dict[str, str]:
    """Roots that are the same, or one within the other, only by a link, with what is odd about them: files of one would
    be orphans of the other. Both are left alone.
    """
    found: dict[str, str] = {}
    of_real: dict[str, str] = {}
    for place, real in real_paths.items():
        if (other := of_real.setdefault(real, place)) != place:
            found |= dict.fromkeys((place, other), f"{place} and {other} are the same directory by a link: {_WHOSE}")
    for place, real in real_paths.items():
        for above in _parents(real):
            other = of_real.get(above, "")
            if other and not place.startswith(f"{other}/"):
                found |= dict.fromkeys((place, other), f"{place} lies within {other} by a link: {_WHOSE}")
    return found


def _parents(path: str) -> Iterable[str]:
    while (path := path.rpartition("/")[0]).strip("/"):
        yield path


def split_names(names: Iterable[str], width: int = WIDE) -> list[tuple[str, str]]:
    """Splits a directory into ranges of names with a limited number of subdirectories each."""
    starts = ["", *sorted((f"{name}/" for name in names), key=str.encode)[width::width]]
    return list(zip(starts, [*starts[1:], ""], strict=True))


def is_schema_file(below: str) -> bool:
    """Whether a path below a data path is one that the catalog's schema files have."""
    return bool(_OUR_SCHEMA_FILES.fullmatch(below))


def spared_without_claims(root: Root, path: str, modified: datetime.datetime, cutoff: datetime.datetime) -> str | None:
    """Returns why a file is no orphan regardless of the catalogs; None: the catalogs must be asked."""
    below = path[len(root.place.rstrip("/")) + 1 :]
    if modified >= cutoff:
        return "it is young and may be published soon"
    if _TRASH.fullmatch(below):
        return "it is in the trash"
    if path.rpartition("/")[2] == MARKER:
        return "it marks the directory as ours"
    if root.location is not None and not _may_be_of(root.location, path):
        return "it does not belong to the table"
    if root.location is None and not (_OURS.fullmatch(below) or is_schema_file(below)):
        return "Lakefork does not write such files"
    if root.location is None and root.known and _CONFIGS.fullmatch(below):
        return "it belongs to the catalog"
    return None


def _may_be_of(location: str, path: str) -> bool:
    inside = re.match(location, path)
    return inside is not None and _OURS.fullmatch(path[inside.end() :]) is not None


def paths_to_check(path: str) -> list[str]:
    """Returns the path of a file, and for a temporary file the path that it will get."""
    temporary = _TEMPORARY.fullmatch(path)
    return [path, temporary[1] + temporary[2]] if temporary else [path]


def directories_to_check(path: str) -> list[str]:
    """Returns the directories whose existence keeps a file: a manifest's table, the audit of quarantined files."""
    directory, _, name = path.rpartition("/")
    quarantine = _QUARANTINE.fullmatch(path)
    return ([directory] if name == MANIFEST else []) + ([quarantine[1]] if quarantine else [])


def spared_by_claim(path: str, claims: Claims) -> str | None:
    """Returns why a file is no orphan according to the catalogs; None: nobody needs it."""
    target = paths_to_check(path)[-1]
    if claims.has(path, "file"):
        return "a catalog refers to it"
    if claims.has(target, "foreign"):
        return "somebody else wrote it"
    if claims.has(path, "scheduled"):
        return "it is scheduled for deletion"
    if claims.has(target, "staged"):
        return "a run has staged it"
    for directory in directories_to_check(path):
        if claims.has(directory, "table" if path == f"{directory}/{MANIFEST}" else "quarantine"):
            return "it belongs to a table or a quarantine"
    return None
