"""What a backup copies, what it relies on, and what it need not keep: decided without looking anywhere."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakefork.model.slices import Slice

TASK_BYTES = 64 << 20
TASK_FILES = 1_000


@dataclass(frozen=True)
class FileToKeep:
    """A batch of the catalog; digest: if it is known from before."""

    number: int
    path: str
    size: int
    digest: str | None = None


@dataclass
class CopyTask:
    files: list[FileToKeep] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True)
class CopyPlan:
    """relied_on: files that the place has already; tasks: the others."""

    relied_on: list[FileToKeep]
    tasks: list[CopyTask]

    @property
    def files(self) -> int:
        return sum(len(task.files) for task in self.tasks)

    @property
    def bytes(self) -> int:
        return sum(task.size for task in self.tasks)


def plan_copies(files: Iterable[FileToKeep], reliable: Mapping[str, int]) -> CopyPlan:
    """reliable: files at the place that a backup before has, with their sizes; none for a full backup."""
    relied_on: list[FileToKeep] = []
    others: list[FileToKeep] = []
    for file in files:
        known = file.digest is not None and reliable.get(file.digest) == file.size
        (relied_on if known else others).append(file)
    return CopyPlan(relied_on, _tasks(others))


def _tasks(files: Sequence[FileToKeep]) -> list[CopyTask]:
    tasks: list[CopyTask] = []
    for file in files:
        full = not tasks or tasks[-1].size >= TASK_BYTES or len(tasks[-1].files) >= TASK_FILES
        if full:
            tasks.append(CopyTask())
        tasks[-1].files.append(file)
        tasks[-1].size += file.size
    return tasks


def plan_hot_slices(waiting: Iterable[tuple[int, str | None, int]], slice_rows: int, parallelism: int) -> list[Slice]:
    """waiting: table, owner (None: a shared table) and versions. Owners of a table go together, up to a slice."""
    found = sorted(waiting, key=lambda one: (one[0], one[1] or ""))
    most = max(1, min(slice_rows, -(-sum(versions for _, _, versions in found) // max(parallelism, 1))))
    slices: list[tuple[int, list[str] | None, int]] = []
    for table, owner, versions in found:
        last = slices[-1] if slices else None
        if owner is not None and last and last[0] == table and last[1] is not None and last[2] + versions <= most:
            last[1].append(owner)
            slices[-1] = (table, last[1], last[2] + versions)
        else:
            slices.append((table, None if owner is None else [owner], versions))
    return [Slice(table, None if users is None else tuple(users)) for table, users, _ in slices]


def backups_to_remove(newest_last: Sequence[str], keep: int | None) -> list[str]:
    """Of backups of one thing; keep None: all stay."""
    return list(newest_last[: max(0, len(newest_last) - keep)]) if keep is not None else []


def unneeded(found: Iterable[str], needed: Collection[str]) -> list[str]:
    """Files that no backup has."""
    return sorted(digest for digest in found if digest not in needed)
