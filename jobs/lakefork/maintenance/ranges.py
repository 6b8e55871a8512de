"""Ranges of keys, and which of them may hold a key in common."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class KeyRange:
    """The least and the greatest value of a key's first column; None where it is not known."""

    low: Any = None
    high: Any = None

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None


def touching(items: Iterable[Item], range_of: Callable[[Item], KeyRange]) -> Iterator[list[Item]]:
    """Groups such that no key can be in two of them, in the order of keys; a range that is not known touches all."""
    everything = list(items)
    if not all(range_of(item).is_known for item in everything):
        yield from [everything] if everything else []
        return
    group: list[Item] = []
    end: Any = None
    for item in sorted(everything, key=lambda one: range_of(one).low):
        if group and range_of(item).low > end:
            yield group
            group, end = [], None
        group.append(item)
        end = range_of(item).high if end is None else max(end, range_of(item).high)
    if group:
        yield group
