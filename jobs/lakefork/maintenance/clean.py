"""Which batches hold the only version of each of their keys, by what the catalog knows of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeVar

from lakefork.maintenance.ranges import KeyRange, touching


class Owned(Protocol):
    """A batch: whose rows it has (None: a shared table's), and the range of the key's first column in it."""

    @property
    def owner(self) -> str | None: ...
    @property
    def key_range(self) -> KeyRange: ...


Batch = TypeVar("Batch", bound=Owned)


@dataclass(frozen=True)
class Separated(Generic[Batch]):
    """alone: no other batch can hold a key of theirs; contested: the newest version of a key has to be looked for."""

    alone: tuple[Batch, ...]
    contested: tuple[Batch, ...]


def separate(batches: Iterable[Batch]) -> Separated[Batch]:
    """A batch itself has one version per key: flush and dedup write no other ones."""
    alone: list[Batch] = []
    contested: list[Batch] = []
    for _, of_owner in groupby(sorted(batches, key=_owner), key=_owner):
        for group in touching(of_owner, lambda batch: batch.key_range):
            (alone if len(group) == 1 else contested).extend(group)
    return Separated(tuple(alone), tuple(contested))


def _owner(batch: Owned) -> tuple[bool, str]:
    return batch.owner is not None, batch.owner or ""
