"""Parses messages of pgoutput, the logical replication protocol of Postgres, versions 1 to 4. No I/O."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lakefork.errors import InvalidInputError


class ProtocolError(InvalidInputError):
    """The bytes are no message of pgoutput."""


class Unchanged:
    """A value that is stored out of line and did not change: the message does not have it."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = bytes | None | Unchanged  # as text, or binary where it was asked for
Values = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    final_lsn: int
    committed_at: int  # microseconds since 2000-01-01
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """xid: of a streamed transaction; 0: the one that began last."""

    lsn: int
    end_lsn: int
    committed_at: int
    xid: int = 0


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it is from now on. identity: d (primary key), f (all columns), i (an index) or n (nothing)."""

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Insert:
    relation: int
    new: Values


@dataclass(frozen=True, slots=True)
class Update:
    """old: the old key or row, where the message has it; old_is_key: only its key columns are filled."""

    relation: int
    old: Values | None
    new: Values
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Delete:
    relation: int
    old: Values
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    cascade: bool
    restart_sequences: bool


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamAbort:
    xid: int
    subxid: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of a two-phase commit. kind: b, P, K, r or p, as the protocol calls it."""

    kind: str
    lsn: int
    end_lsn: int
    xid: int
    gid: str


Change = Insert | Update | Delete | Truncate
Message = (
    Begin
    | Commit
    | Relation
    | Change
    | Type
    | Origin
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamAbort
    | Prepared
)
_LONG, _INT, _SHORT = struct.Struct(">Q"), struct.Struct(">I"), struct.Struct(">H")
_BEGIN, _COMMIT = struct.Struct(">QQI"), struct.Struct(">BQQQ")


class Parser:
    """Parses one message after the other; remembers whether they belong to a streamed block."""

    def __init__(self, version: int = 1) -> None:
        self._version = version
        self._streaming = False
        self.xid = 0  # of the last message of a streamed block

    def parse(self, data: bytes) -> Message:
        """Raises ProtocolError for anything that is not exactly one message."""
        if not data:
            raise ProtocolError("an empty message")
        read = _READERS.get(data[0])
        if read is None:
            raise ProtocolError(f"unknown message {data[:1]!r}")
        reader = _Reader(data)
        try:
            found: Message = read(self, reader)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"message {data[:1]!r} is cut off or damaged") from error
        if reader.place != len(data):
            raise ProtocolError(f"message {data[:1]!r} has {len(data) - reader.place} bytes too many")
        return found

    def _begin(self, reader: "_Reader") -> Begin:
        return Begin(*reader.unpack(_BEGIN))

    def _commit(self, reader: "_Reader") -> Commit:
        _, lsn, end_lsn, at = reader.unpack(_COMMIT)
        return Commit(lsn, end_lsn, at)

    def _relation(self, reader: "_Reader") -> Relation:
        self._take_xid(reader)
        oid, namespace, name, identity = reader.u32(), reader.text(), reader.text(), reader.char()
        columns = []
        for _ in range(reader.u16()):
            flags, column, type_oid = reader.u8(), reader.text(), reader.u32()
            columns.append(RelationColumn(column, type_oid, reader.u32(), bool(flags & 1)))
        return Relation(oid, namespace or "pg_catalog", name, identity, tuple(columns))

    def _insert(self, reader: "_Reader") -> Insert:
        self._take_xid(reader)
        relation = reader.u32()
        reader.expect("N")
        return Insert(relation, reader.values())

    def _update(self, reader: "_Reader") -> Update:
        self._take_xid(reader)
        relation, kind = reader.u32(), reader.char()
        old = None
        if kind in "KO":
            old = reader.values()
            reader.expect("N")
        elif kind != "N":
            raise ProtocolError(f"an update has {kind!r} where K, O or N is expected")
        return Update(relation, old, reader.values(), kind == "K")

    def _delete(self, reader: "_Reader") -> Delete:
        self._take_xid(reader)
        relation, kind = reader.u32(), reader.char()
        if kind not in "KO":
            raise ProtocolError(f"a delete has {kind!r} where K or O is expected")
        return Delete(relation, reader.values(), kind == "K")

    def _truncate(self, reader: "_Reader") -> Truncate:
        self._take_xid(reader)
        count, options = reader.u32(), reader.u8()
        if count > reader.left // 4:
            raise ProtocolError(f"a truncate of {count} tables in {reader.left} bytes")
        return Truncate(tuple(reader.u32() for _ in range(count)), bool(options & 1), bool(options & 2))

    def _type(self, reader: "_Reader") -> Type:
        self._take_xid(reader)
        return Type(reader.u32(), reader.text() or "pg_catalog", reader.text())

    def _origin(self, reader: "_Reader") -> Origin:
        return Origin(reader.u64(), reader.text())

    def _message(self, reader: "_Reader") -> LogicalMessage:
        self._take_xid(reader)
        flags, lsn, prefix = reader.u8(), reader.u64(), reader.text()
        return LogicalMessage(bool(flags & 1), lsn, prefix, reader.take(reader.u32()))

    def _stream_start(self, reader: "_Reader") -> StreamStart:
        self._require(2, "S")
        found = StreamStart(reader.u32(), bool(reader.u8()))
        self._streaming, self.xid = True, found.xid
        return found

    def _stream_stop(self, _: "_Reader") -> StreamStop:
        self._require(2, "E")
        self._streaming, self.xid = False, 0
        return StreamStop()

    def _stream_commit(self, reader: "_Reader") -> Commit:
        self._require(2, "c")
        xid = reader.u32()
        _, lsn, end_lsn, at = reader.unpack(_COMMIT)
        return Commit(lsn, end_lsn, at, xid)

    def _stream_abort(self, reader: "_Reader") -> StreamAbort:
        self._require(2, "A")
        found = StreamAbort(reader.u32(), reader.u32())
        if self._version >= 4 and reader.left:  # sent for parallel streaming alone
            reader.u64(), reader.u64()
        return found

    def _begin_prepare(self, reader: "_Reader") -> Prepared:
        self._require(3, "b")
        lsn, end_lsn, _ = reader.u64(), reader.u64(), reader.u64()
        return Prepared("b", lsn, end_lsn, reader.u32(), reader.text())

    def _prepared(self, reader: "_Reader") -> Prepared:
        kind = reader.kind
        self._require(3, kind)
        reader.u8()
        lsn, end_lsn, _ = reader.u64(), reader.u64(), reader.u64()
        return Prepared(kind, lsn, end_lsn, reader.u32(), reader.text())

    def _rollback_prepared(self, reader: "_Reader") -> Prepared:
        self._require(3, "r")
        reader.u8()
        lsn, end_lsn, _, _ = reader.u64(), reader.u64(), reader.u64(), reader.u64()
        return Prepared("r", lsn, end_lsn, reader.u32(), reader.text())

    def _take_xid(self, reader: "_Reader") -> None:
        if self._streaming:
            self.xid = reader.u32()

    def _require(self, version: int, kind: str) -> None:
        if self._version < version:
            raise ProtocolError(f"message {kind!r} belongs to version {version} of the protocol, not {self._version}")


_READERS: dict[int, Callable[[Parser, Any], Message]] = {
    ord(kind): read
    for kind, read in (
        ("B", Parser._begin), ("C", Parser._commit), ("R", Parser._relation), ("I", Parser._insert),
        ("U", Parser._update), ("D", Parser._delete), ("T", Parser._truncate), ("Y", Parser._type),
        ("O", Parser._origin), ("M", Parser._message), ("S", Parser._stream_start), ("E", Parser._stream_stop),
        ("c", Parser._stream_commit), ("A", Parser._stream_abort), ("b", Parser._begin_prepare),
        ("P", Parser._prepared), ("K", Parser._prepared), ("p", Parser._prepared), ("r", Parser._rollback_prepared),
    )
}  # fmt: skip


class _Reader:
    """Reads the bytes of one message, from behind its kind on."""

    __slots__ = ("data", "place")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 1

    @property
    def kind(self) -> str:
        return chr(self.data[0])

    @property
    def left(self) -> int:
        return len(self.data) - self.place

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self.data, self.place)
        self.place += form.size
        return found

    def u64(self) -> int:
        return int(self.unpack(_LONG)[0])

    def u32(self) -> int:
        return int(self.unpack(_INT)[0])

    def u16(self) -> int:
        return int(self.unpack(_SHORT)[0])

    def u8(self) -> int:
        found = self.data[self.place]
        self.place += 1
        return found

    def char(self) -> str:
        return chr(self.u8())

    def text(self) -> str:
        end = self.data.find(b"\0", self.place)
        if end < 0:
            raise IndexError
        found = self.data[self.place : end].decode()
        self.place = end + 1
        return found

    def take(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self.data):
            raise IndexError
        found = self.data[self.place : end]
        self.place = end
        return found

    def expect(self, kind: str) -> None:
        if (found := self.char()) != kind:
            raise ProtocolError(f"{found!r} where {kind!r} is expected")

    def values(self) -> Values:
        """The columns of a row: n (NULL), u (unchanged), t (text) or b (binary) each."""
        data, place = self.data, self.place
        (count,) = _SHORT.unpack_from(data, place)
        place += 2
        found: list[Value] = []
        for _ in range(count):
            kind = data[place]
            place += 1
            if kind in _WITH_CONTENT:
                (size,) = _INT.unpack_from(data, place)
                place += 4 + size
                if place > len(data):
                    raise IndexError
                found.append(data[place - size : place])
            elif kind == _NULL:
                found.append(None)
            elif kind == _UNCHANGED:
                found.append(UNCHANGED)
            else:
                raise ProtocolError(f"a value of kind {chr(kind)!r}")
        self.place = place
        return tuple(found)


_NULL, _UNCHANGED, _WITH_CONTENT = ord("n"), ord("u"), (ord("t"), ord("b"))
