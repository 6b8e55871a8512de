"""Key ranges, and which of them may have a key in common."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

Item = TypeVar("Item")


class KeyRange(NamedTuple):
    """The smallest and largest value of the first key column; None if unknown."""

    low: Any = None
    high: Any = None

    @property
    def is_known(self) -> bool:
        return self.low is not None and self.high is not None

    def overlaps(self, other: "KeyRange") -> bool:
        """Tells whether a key may be in both ranges."""
        if not self.is_known or not other.is_known:
            return True
        return bool(self.low <= other.high and other.low <= self.high)


def touching(items: Iterable[Item], range_of: Callable[[Item], KeyRange]) -> Iterator[list[Item]]:
    """Groups ranges so that no key can be in two groups, in key order; an unknown range overlaps all."""
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
