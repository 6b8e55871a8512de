"""Messages of pgoutput: each kind of each version is understood, and no other bytes ever are."""

import contextlib
import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefork.transfer.follow import pgoutput
from lakefork.transfer.follow.pgoutput import UNCHANGED, Parser, ProtocolError, Value


def row(*values: Value) -> bytes:
    found = struct.pack(">H", len(values))
    for value in values:
        if isinstance(value, bytes):
            found += b"t" + struct.pack(">I", len(value)) + value
        else:
            found += b"n" if value is None else b"u"
    return found


def text(value: str) -> bytes:
    return value.encode() + b"\0"


LONGS = struct.pack(">QQQ", 1 << 40, (1 << 40) + 9, 700)
RELATION = b"R" + struct.pack(">I", 16400) + text("") + text("t") + b"d" + struct.pack(">H", 2) + (
    b"\x01" + text("id") + struct.pack(">Ii", 23, -1) + b"\x00" + text("Ünï") + struct.pack(">Ii", 25, -1)
)  # fmt: skip
OLD = struct.pack(">I", 16400)
MESSAGES = {  # by the version that brought them
    1: [
        (b"B" + struct.pack(">QQI", 1 << 40, 700, 99), pgoutput.Begin(1 << 40, 700, 99)),
        (b"C\0" + LONGS, pgoutput.Commit(1 << 40, (1 << 40) + 9, 700)),
        (b"O" + struct.pack(">Q", 5) + text("other"), pgoutput.Origin(5, "other")),
        (b"Y" + OLD + text("app") + text("mood"), pgoutput.Type(16400, "app", "mood")),
        (b"I" + OLD + b"N" + row(b"1", None), pgoutput.Insert(16400, (b"1", None))),
        (b"U" + OLD + b"N" + row(b"1", UNCHANGED), pgoutput.Update(16400, None, (b"1", UNCHANGED), False)),
        (b"U" + OLD + b"K" + row(b"1", None) + b"N" + row(b"2", b""), pgoutput.Update(16400, (b"1", None), (b"2", b""), True)),
        (b"U" + OLD + b"O" + row(b"1", b"x") + b"N" + row(b"1", b"y"), pgoutput.Update(16400, (b"1", b"x"), (b"1", b"y"), False)),
        (b"D" + OLD + b"K" + row(b"1", None), pgoutput.Delete(16400, (b"1", None), True)),
        (b"D" + OLD + b"O" + row(b"1", b"x"), pgoutput.Delete(16400, (b"1", b"x"), False)),
        (b"T" + struct.pack(">IBII", 2, 3, 7, 8), pgoutput.Truncate((7, 8), True, True)),
        (b"M\x01" + struct.pack(">Q", 6) + text("p") + struct.pack(">I", 2) + b"\0x", pgoutput.LogicalMessage(True, 6, "p", b"\0x")),
    ],
    2: [
        (b"c" + struct.pack(">I", 99) + b"\0" + LONGS, pgoutput.Commit(1 << 40, (1 << 40) + 9, 700, 99)),
        (b"A" + struct.pack(">II", 99, 100), pgoutput.StreamAbort(99, 100)),
        (b"E", pgoutput.StreamStop()),
    ],
    3: [
        (b"b" + LONGS + struct.pack(">I", 99) + text("gid"), pgoutput.Prepared("b", 1 << 40, (1 << 40) + 9, 99, "gid")),
        *((kind + b"\0" + LONGS + struct.pack(">I", 99) + text("gid"), pgoutput.Prepared(kind.decode(), 1 << 40, (1 << 40) + 9, 99, "gid"))
          for kind in (b"P", b"K", b"p")),
        (b"r\0" + LONGS + struct.pack(">QI", 1, 99) + text("gid"), pgoutput.Prepared("r", 1 << 40, (1 << 40) + 9, 99, "gid")),
    ],
    4: [(b"A" + struct.pack(">IIQQ", 99, 100, 1, 2), pgoutput.StreamAbort(99, 100))],
}  # fmt: skip
ALL = [(version, data, message) for version, some in MESSAGES.items() for data, message in some]


@pytest.mark.parametrize(("version", "data", "message"), ALL, ids=lambda one: str(one)[:12])
def test_each_message_is_understood_from_its_version_on(version: int, data: bytes, message: object) -> None:
    for known in range(version, 5):
        if (known, data[:1], len(data)) != (4, b"A", 9):
            assert Parser(known).parse(data) == message
    if version > 1 and data[:1] != b"A":
        with pytest.raises(ProtocolError):
            Parser(1).parse(data)


def test_a_table_has_its_columns_and_key() -> None:
    found = Parser().parse(RELATION)
    assert isinstance(found, pgoutput.Relation) and str(found) == "pg_catalog.t"
    assert [(column.name, column.type_oid, column.is_key) for column in found.columns] == [
        ("id", 23, True),
        ("Ünï", 25, False),
    ]


def test_messages_of_a_streamed_block_say_which_transaction_they_belong_to() -> None:
    parser, xid = Parser(2), struct.pack(">I", 99)
    assert parser.parse(b"S" + xid + b"\x01") == pgoutput.StreamStart(99, True)
    insert = b"I" + xid + OLD + b"N" + row(b"1")
    assert parser.parse(insert) == pgoutput.Insert(16400, (b"1",)) and parser.xid == 99
    parser.parse(b"E")
    with pytest.raises(ProtocolError):
        parser.parse(insert)


@pytest.mark.parametrize(("version", "data"), [one[:2] for one in ALL] + [(1, RELATION)], ids=lambda one: str(one)[:8])
def test_what_is_cut_off_or_too_long_is_refused(version: int, data: bytes) -> None:
    for end in range(len(data)):
        if (version, data[:1], end) != (4, b"A", 9):  # which is a whole one of an older version
            with pytest.raises(ProtocolError):
                Parser(version).parse(data[:end])
    if (version, data[:1]) != (4, b"A"):
        with pytest.raises(ProtocolError):
            Parser(3).parse(data + b"x")


def only_protocol_errors(parse: Callable[[bytes], object], data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        parse(data)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 4))
def test_any_bytes_are_a_message_or_refused(data: bytes, version: int) -> None:
    only_protocol_errors(Parser(version).parse, data)


def test_flipped_bits_are_a_message_or_refused() -> None:
    dice = random.Random(25)  # noqa: S311 - repeatable
    known = [data for _, data, _ in ALL] + [RELATION]
    for _ in range(20_000):
        data = bytearray(dice.choice(known))
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        parser = Parser(dice.randint(1, 4))
        if dice.random() < 0.3:
            parser.parse(b"S" + struct.pack(">I", 1) + b"\0") if parser._version > 1 else None
        only_protocol_errors(parser.parse, bytes(data))
