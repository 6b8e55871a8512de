"""What the page shows of copies."""

from lakefork.catalog.connection import connect
from lakefork.overview.copies import list_recent_copies
from support.copy_lab import CopyLab


def test_the_page_shows_copies_and_their_progress(lab: CopyLab) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    lab.copy(copy_id="one")
    with connect(lab.dsn) as connection:
        (row,) = list_recent_copies(connection)
    assert (row["copy_id"], row["source"], row["target"], row["status"]) == ("one", "src", "dst", "completed")
    assert (row["tables"], row["parts"], row["parts_done"], row["rows_done"], row["error"]) == (1, 1, 1, 2, None)
