"""Arrow rows in shared memory, written once and mapped by workers, for any number of queries."""

import itertools
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence

import pyarrow as pa

MIN_BYTES_TO_SHARE = 64 << 10  # bytes; fewer are sent over the socket as fast
MAX_PIECES = 16
_numbers = itertools.count()
_pieces: dict[int, tuple["Piece", ...]] = {}  # by id of the table that they form


class Piece:
    """Rows as an Arrow stream in an anonymous memory file."""

    def __init__(self, rows: pa.Table, *, comes_again: bool = True) -> None:
        self.number = next(_numbers) if comes_again else None
        self.fd = _memory_file()
        weakref.finalize(self, os.close, self.fd)
        counted = pa.MockOutputStream()
        _write(rows, counted)
        self.size = counted.size()
        os.ftruncate(self.fd, self.size)
        with pa.FixedSizeBufferWriter(pa.py_buffer(mmap.mmap(self.fd, self.size))) as target:
            _write(rows, target)

    def read(self) -> pa.Table:
        return map_rows(self.fd, self.size)


def _memory_file() -> int:
    """Creates a memory file; not in /dev/shm, which containers limit to 64 MB."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lakefork-rows", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(rows: pa.Table, target: pa.NativeFile) -> None:
    with pa.ipc.new_stream(target, rows.schema) as writer:
        writer.write_table(rows)


def map_rows(fd: int, size: int) -> pa.Table:
    """Maps the rows of a piece for as long as they are used."""
    memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    return pa.ipc.open_stream(pa.py_buffer(memory)).read_all()


def share(rows: pa.Table) -> pa.Table:
    """Copies rows to shared memory."""
    piece = Piece(rows)
    return _made_of([piece], piece.read())


def extend(shared: pa.Table, new: pa.Table) -> pa.Table:
    """Appends rows; copies only the new ones, unless there are too many pieces."""
    pieces = _pieces.get(id(shared), ())
    if not pieces or len(pieces) >= MAX_PIECES:
        return share(pa.concat_tables([shared, new]).combine_chunks())
    added = Piece(new)
    return _made_of([*pieces, added], pa.concat_tables([shared, added.read()]))


def pieces_of(rows: pa.Table) -> tuple[Piece, ...]:
    """Returns the pieces of shared rows; a new piece for other large rows; nothing for small ones."""
    found = _pieces.get(id(rows), ())
    if not found and rows.nbytes >= MIN_BYTES_TO_SHARE:
        return (Piece(rows, comes_again=False),)
    return found


def _made_of(pieces: Sequence[Piece], rows: pa.Table) -> pa.Table:
    _pieces[id(rows)] = tuple(pieces)
    weakref.finalize(rows, _pieces.pop, id(rows), None)
    return rows
