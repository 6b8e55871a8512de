"""Rows on their way into hot tables."""

import subprocess
import sys

UNALIGNED = """
import pyarrow as pa
from lakefork.hot.rows import are_unique
values = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(bytes(25))[1:]])
assert are_unique(pa.table({"a": values, "b": [1, 2, 3]}))
"""


def test_arrow_does_not_warn_in_the_terminal_of_rows_that_came_from_a_worker() -> None:
    done = subprocess.run([sys.executable, "-c", UNALIGNED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
