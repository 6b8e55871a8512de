"""Plans snapshot_dedup: which batches of an owner are worth merging, in groups of a bounded size."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lakefork.maintenance.ranges import KeyRange, touching


class Holds(Enum):
    LIVE = 1
    TOMBSTONES = 2
    BOTH = 3


@dataclass(frozen=True)
class Candidate:
    """A batch that may be merged with others of its owner."""

    file_id: int
    born: int  # the snapshot that added it: batches of one commit share no key
    path: str
    rows: int
    size_bytes: int
    min_seq: int
    max_seq: int | None
    key: KeyRange
    holds: Holds


@dataclass(frozen=True)
class Limits:
    """min_batches: fewer commits' files are left alone, unless so large a share of their rows may be superseded."""

    min_batches: int
    superseded_share: float
    target_bytes: int
    group_bytes: int


@dataclass(frozen=True)
class Group:
    """Batches that become one; alone: no other batch of the owner can hold a key of theirs."""

    batches: tuple[Candidate, ...]
    alone: bool

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)


def plan_groups(batches: Sequence[Candidate], limits: Limits, forget_before: int | None = None) -> list[Group]:
    """What is worth it: batches whose keys overlap, small neighbours, and tombstones with a smaller _seq than that."""
    found = []
    for together in _neighbourhoods(touching(batches, lambda batch: batch.key), limits, forget_before):
        chunks = [Group(tuple(chunk), alone=False) for chunk in _chunks(together, limits.group_bytes)]
        groups = [replace(chunks[0], alone=True)] if len(chunks) == 1 else chunks
        found += [group for group in groups if _is_worth_it(group, limits, forget_before)]
    return found


def _neighbourhoods(
    components: Iterable[Sequence[Candidate]], limits: Limits, forget_before: int | None
) -> Iterator[list[Candidate]]:
    """Components of overlapping batches, with small ones beside them that make one file together."""
    waiting: list[Candidate] = []
    for component in components:
        size = sum(batch.size_bytes for batch in component)
        if len(component) == 1 and 2 * size >= limits.target_bytes and _is_as_it_should_be(component[0], forget_before):
            continue
        if waiting and sum(batch.size_bytes for batch in waiting) + size > limits.group_bytes:
            yield waiting
            waiting = []
        waiting += component
    if waiting:
        yield waiting


def _chunks(batches: Sequence[Candidate], group_bytes: int) -> Iterator[list[Candidate]]:
    """Of too many that overlap, the oldest first: each group makes them fewer."""
    if sum(batch.size_bytes for batch in batches) <= group_bytes:
        yield list(batches)
        return
    chunk: list[Candidate] = []
    for batch in sorted(batches, key=lambda one: (one.min_seq, one.file_id)):
        if chunk and sum(one.size_bytes for one in chunk) + batch.size_bytes > group_bytes:
            yield chunk
            chunk = []
        chunk.append(batch)
    if chunk:
        yield chunk


def _is_worth_it(group: Group, limits: Limits, forget_before: int | None) -> bool:
    if group.alone and any(_is_forgotten(one, forget_before) for one in group.batches):
        return True
    commits = len({batch.born for batch in group.batches})
    if commits < 2:  # nothing to merge, but rows and tombstones to separate
        return any(batch.holds is Holds.BOTH for batch in group.batches)
    return commits >= limits.min_batches or superseded_at_most(group.batches) >= limits.superseded_share


def _is_as_it_should_be(batch: Candidate, forget_before: int | None) -> bool:
    return batch.holds is not Holds.BOTH and not _is_forgotten(batch, forget_before)


def _is_forgotten(batch: Candidate, forget_before: int | None) -> bool:
    if forget_before is None or batch.max_seq is None:
        return False
    return batch.holds is Holds.TOMBSTONES and batch.max_seq < forget_before


def superseded_at_most(batches: Sequence[Candidate]) -> float:
    """The share of rows that may have a newer version in another of the batches, by what is known of their keys."""
    rows = sum(batch.rows for batch in batches)
    doubled = 0
    for together in touching(batches, lambda batch: batch.key):
        by_commit = Counter[int]()
        for batch in together:
            by_commit[batch.born] += batch.rows
        doubled += by_commit.total() - max(by_commit.values())
    return doubled / rows if rows else 0.0
