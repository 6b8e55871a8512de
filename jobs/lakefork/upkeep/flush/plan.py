"""Plans a flush: which Spark task reads which rows. Users are never split between tasks; slices bound the memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lakefork.model.slices import Key, Slice

SMALLEST_SLICE = 50_000  # fewer rows do not justify a task


@dataclass(frozen=True)
class Share:
    """Waiting versions of one user, or of a shared table (user_id None)."""

    table: int  # the table's index in the run
    user_id: str | None
    versions: int


@dataclass(frozen=True)
class Limits:
    """Limits of a slice, in rows and bytes."""

    slice_rows: int
    slice_bytes: int
    parallelism: int


@dataclass(frozen=True)
class FlushTask:
    slices: tuple[Slice, ...]


def rows_per_slice(shares: Sequence[Share], bytes_per_version: float, limits: Limits) -> int:
    """Returns how many rows a slice may have: within the memory limit, and enough slices to keep all cores busy."""
    by_memory = min(limits.slice_rows, int(limits.slice_bytes / max(bytes_per_version, 1)))
    by_cores = -(-sum(share.versions for share in shares) // limits.parallelism)
    return max(1, min(by_memory, max(by_cores, SMALLEST_SLICE)))


def parts_of(share: Share, slice_rows: int) -> int:
    """Returns in how many slices the rows of one user, or of a shared table, are read."""
    return -(-share.versions // slice_rows) if share.versions > slice_rows else 1


def plan_tasks(
    shares: Iterable[Share], slice_rows: Mapping[int, int], samples: Mapping[tuple[int, str | None], Sequence[Key]]
) -> list[FlushTask]:
    """Plans the tasks. samples: sorted keys of shares with several slices; their quantiles become the bounds."""
    tasks: list[FlushTask] = []
    small: list[Share] = []
    for share in shares:
        parts = parts_of(share, slice_rows[share.table])
        if parts == 1:
            small.append(share)
            continue
        slices = _by_key(share, parts, samples.get((share.table, share.user_id), ()))
        # A user's rows stay in one task; those of a shared table go to as many as there are slices.
        tasks += [FlushTask(slices)] if share.user_id is not None else [FlushTask((one,)) for one in slices]
    return tasks + [FlushTask(tuple(_by_table(group))) for group in _groups(small, slice_rows)]


def _groups(shares: Sequence[Share], slice_rows: Mapping[int, int]) -> Iterator[list[Share]]:
    """Groups neighbours into as few groups of equal size as possible, of about one slice at most."""
    parts = [share.versions / slice_rows[share.table] for share in shares]
    size = sum(parts) / max(1, round(sum(parts) + 0.4))
    group: list[Share] = []
    filled = done = 0.0
    groups = 1
    for share, part in zip(shares, parts, strict=True):
        # Each group ends at its share of the total, so that the last one is not a small remainder.
        if group and done + filled + part / 2 > groups * size:
            yield group
            group, done, filled, groups = [], done + filled, 0.0, groups + 1
        group.append(share)
        filled += part
    if group:
        yield group


def _by_table(group: Sequence[Share]) -> Iterator[Slice]:
    users: dict[int, list[str]] = {}
    for share in group:
        if share.user_id is None:
            yield Slice(share.table, None)
        else:
            users.setdefault(share.table, []).append(share.user_id)
    for table, names in users.items():
        yield Slice(table, tuple(names))


def _by_key(share: Share, parts: int, sample: Sequence[Key]) -> tuple[Slice, ...]:
    users = None if share.user_id is None else (share.user_id,)
    quantiles = [sample[len(sample) * part // parts] for part in range(1, parts)] if sample else []
    bounds: list[Key | None] = [None, *dict.fromkeys(quantiles), None]
    return tuple(Slice(share.table, users, low, high) for low, high in pairwise(bounds))
