"""SHOW TABLE STATS beside a flush: each row counted where it is."""

from lakefork.sql.session import Role
from support.flush_lake import Filled


def stats(filled: Filled, table: str, user: str | None = None) -> dict[str | None, tuple[int, ...]]:
    """live rows, versions that wait, batches and rows in them, by owner."""
    role = Role.USER if user else None
    return {row[0]: row[1:5] for row in filled.flush_lake.lake.rows(f"SHOW TABLE STATS {table}", user=user, role=role)}


def test_rows_are_counted_once_whether_hot_or_published(filled: Filled) -> None:
    assert stats(filled, "app.ours") == {None: (5, 8, 0, 0)}
    assert stats(filled, "app.mine") == {"ada": (4, 9, 0, 0), "bob": (4, 9, 0, 0)}
    filled.flush_lake.flush()
    assert stats(filled, "app.ours") == {None: (5, 0, 1, 5)}, (
        "published rows are not hot, though they are not trimmed yet"
    )
    assert stats(filled, "app.mine") == {"ada": (4, 0, 1, 5), "bob": (4, 0, 1, 5)}
    filled.flush_lake.lake.run("DELETE FROM app.mine WHERE id = 0; INSERT INTO app.mine VALUES (77, 'x')", user="ada")
    assert stats(filled, "app.mine") == {"ada": (4, 2, 1, 5), "bob": (4, 0, 1, 5)}
    assert stats(filled, "app.mine", "ada") == {"ada": (4, 2, 1, 5)}
    filled.flush_lake.lake.run("ALTER TABLE app.ours ADD COLUMN n INT; INSERT INTO app.ours (id, n) VALUES (77, 1)")
    assert stats(filled, "app.ours") == {None: (6, 1, 1, 5)}
