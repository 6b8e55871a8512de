"""What tests of SQL can watch."""

import pyarrow as pa
import pytest

from lakefork.hot.connections import ArrowConnection


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each COPY from now on."""
    found: list[int] = []
    copy_in = ArrowConnection.copy_in

    def counting(connection: ArrowConnection, schema: str, table: str, rows: pa.Table) -> None:
        found.append(rows.num_rows)
        copy_in(connection, schema, table, rows)

    monkeypatch.setattr(ArrowConnection, "copy_in", counting)
    return found
