"""SeqId, the value of `_seq`: 41 bits of milliseconds since 2025, 10 bits of node, 12 bits of sequence."""

import operator
from datetime import UTC, datetime, timedelta
from typing import Self, SupportsIndex

from lakefork.errors import InvalidInputError

EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
TIME_BITS, NODE_BITS, SEQUENCE_BITS = 41, 10, 12
NODES, SEQUENCES = 1 << NODE_BITS, 1 << SEQUENCE_BITS
END_MS = 1 << TIME_BITS

MILLISECOND = timedelta(milliseconds=1)
TIME_SHIFT = NODE_BITS + SEQUENCE_BITS
EPOCH_MS = int(EPOCH.timestamp()) * 1000


class SeqId(int):
    """An id that grows with time; ids of different nodes in one millisecond are ordered by node."""

    __slots__ = ()

    @classmethod
    def of(cls, milliseconds: int, node: int, sequence: int) -> Self:
        require_in_range("milliseconds", milliseconds, END_MS)
        require_in_range("node", node, NODES)
        require_in_range("sequence", sequence, SEQUENCES)
        return cls(milliseconds << TIME_SHIFT | node << SEQUENCE_BITS | sequence)

    @classmethod
    def parse(cls, value: SupportsIndex) -> Self:
        try:
            number = operator.index(value)
        except TypeError:
            raise InvalidInputError(f"_seq is an integer, not {value!r}") from None
        require_in_range("_seq", number, 1 << 63)
        return cls(number)

    @classmethod
    def first_at(cls, moment: datetime) -> Self:
        """Returns the smallest id whose timestamp is not before `moment`; smaller ids are older."""
        if moment.tzinfo is None:
            raise InvalidInputError(f"{moment.isoformat()} has no time zone")
        return cls.of(max(0, -((EPOCH - moment) // MILLISECOND)), 0, 0)

    @property
    def milliseconds(self) -> int:
        return self >> TIME_SHIFT

    @property
    def timestamp(self) -> datetime:
        return EPOCH + self.milliseconds * MILLISECOND

    @property
    def node(self) -> int:
        return self >> SEQUENCE_BITS & NODES - 1

    @property
    def sequence(self) -> int:
        return self & SEQUENCES - 1


def require_in_range(name: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise InvalidInputError(f"{name} = {value} is out of range: 0 … {end - 1}")
