"""Compares the key ranges of batches: which rows may have a newer version in another batch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lakefork.model.key_ranges import KeyRange, touching


class BatchContent(Enum):
    LIVE = 1
    TOMBSTONES = 2
    BOTH = 3


@dataclass(frozen=True)
class Candidate:
    """A batch with the bounds of its keys; other batches of its owner may hold newer versions of its rows."""

    file_id: int
    born: int  # the snapshot that added it: batches of one commit share no key
    path: str
    rows: int
    size_bytes: int
    min_seq: int
    key: KeyRange
    content: BatchContent


def max_superseded_share(batches: Sequence[Candidate]) -> float:
    """Returns the share of rows that may have a newer version in another of these batches, by key bounds."""
    rows = sum(batch.rows for batch in batches)
    doubled = 0
    for together in touching(batches, lambda batch: batch.key):
        by_commit = Counter[int]()
        for batch in together:
            by_commit[batch.born] += batch.rows
        doubled += by_commit.total() - max(by_commit.values())
    return doubled / rows if rows else 0.0
