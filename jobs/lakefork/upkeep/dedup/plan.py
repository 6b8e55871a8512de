"""Plans snapshot_dedup: which batches of an owner to merge, in groups of bounded size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lakefork.model.batches import BatchContent, Candidate, max_superseded_share
from lakefork.model.key_ranges import touching


@dataclass(frozen=True)
class Limits:
    """Limits of a plan. Files of fewer commits than min_batches are merged only by superseded_share."""

    min_batches: int
    superseded_share: float
    target_bytes: int
    group_bytes: int


@dataclass(frozen=True)
class Group:
    """Batches to merge; alone: no other batch of the owner can hold a key of an expired tombstone."""

    batches: tuple[Candidate, ...]
    alone: bool

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)


def plan_groups(
    batches: Sequence[Candidate], limits: Limits, forget_before: int | None = None, *, only_expired: bool = False
) -> list[Group]:
    """Groups worth merging: batches whose keys overlap, small neighbours, and whatever may hold a tombstone with a
    smaller _seq than forget_before, with all batches that may hold its key. only_expired: nothing but the last.
    """
    found = []
    for together in _joined_components(touching(batches, lambda batch: batch.key), limits, forget_before):
        for group in _groups(together, limits, forget_before):
            expired = group.alone and any(_may_hold_expired(batch, forget_before) for batch in group.batches)
            if expired or (not only_expired and _justifies_merge(group, limits)):
                found.append(group)
    return found


def _groups(together: Sequence[Candidate], limits: Limits, forget_before: int | None) -> Iterator[Group]:
    """Returns one group if it is not too large. Expired tombstones and what they delete stay together at any size;
    otherwise a deleted value would stay for ever.
    """
    if sum(batch.size_bytes for batch in together) <= limits.group_bytes:
        yield Group(tuple(together), alone=True)
        return
    purged = _with_expired_tombstones(together, forget_before)
    if purged:
        yield Group(tuple(purged), alone=True)
    for chunk in _chunks([batch for batch in together if batch not in purged], limits.group_bytes):
        yield Group(tuple(chunk), alone=False)


def _with_expired_tombstones(batches: Sequence[Candidate], forget_before: int | None) -> list[Candidate]:
    expired = [batch.key for batch in batches if _may_hold_expired(batch, forget_before)]
    return [batch for batch in batches if any(batch.key.overlaps(key) for key in expired)]


def _joined_components(
    components: Iterable[Sequence[Candidate]], limits: Limits, forget_before: int | None
) -> Iterator[list[Candidate]]:
    """Returns connected components of overlapping batches, joined with small neighbours that fit into one file."""
    waiting: list[Candidate] = []
    for component in components:
        size = sum(batch.size_bytes for batch in component)
        if len(component) == 1 and 2 * size >= limits.target_bytes and _needs_no_merge(component[0], forget_before):
            continue
        if waiting and sum(batch.size_bytes for batch in waiting) + size > limits.group_bytes:
            yield waiting
            waiting = []
        waiting += component
    if waiting:
        yield waiting


def _chunks(batches: Sequence[Candidate], group_bytes: int) -> Iterator[list[Candidate]]:
    """Splits batches into groups of at most a size, oldest first."""
    chunk: list[Candidate] = []
    for batch in sorted(batches, key=lambda one: (one.min_seq, one.file_id)):
        if chunk and sum(one.size_bytes for one in chunk) + batch.size_bytes > group_bytes:
            yield chunk
            chunk = []
        chunk.append(batch)
    if chunk:
        yield chunk


def _justifies_merge(group: Group, limits: Limits) -> bool:
    commits = len({batch.born for batch in group.batches})
    if commits < 2:  # rows and tombstones are separated
        return any(batch.content is BatchContent.BOTH for batch in group.batches)
    return commits >= limits.min_batches or max_superseded_share(group.batches) >= limits.superseded_share


def _needs_no_merge(batch: Candidate, forget_before: int | None) -> bool:
    return batch.content is not BatchContent.BOTH and not _may_hold_expired(batch, forget_before)


def _may_hold_expired(batch: Candidate, forget_before: int | None) -> bool:
    """Tells whether a batch may hold an expired tombstone; bounds of _seq cover all its rows."""
    return forget_before is not None and batch.content is not BatchContent.LIVE and batch.min_seq < forget_before
