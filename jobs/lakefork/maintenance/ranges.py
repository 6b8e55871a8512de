"""Ranges of keys, and which of them may hold a key in common."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")


class KeyRange(NamedTuple):
    """The least and the greatest value of a key's first column; None where it is not known."""

    low: Any = None
    high: Any = None

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None


def touching(items: Iterable[Item], range_of: Callable[[Item], KeyRange]) -> Iterator[list[Item]]:
    """Groups such that no key can be in two of them, in the order of keys; a range that is not known touches all."""
    ranged = [(range_of(item), item) for item in items]
    if not all(found.is_known for found, _ in ranged):
        yield [item for _, item in ranged]
        return
    ranged.sort(key=lambda one: one[0].low)
    group: list[Item] = []
    end: Any = None
    for (low, high), item in ranged:
        if group and low > end:
            yield group
            group, end = [], None
        group.append(item)
        end = high if end is None or high > end else end
    if group:
        yield group
