"""Stock DuckDB opens forks as it opens any other catalog."""

import pytest

from lakefork.upkeep import manifests
from support.duckdb_client import ClientView
from support.flush_lake import Filled

BOTH = ("app.mine", "app.ours")


def test_forks_and_forks_of_forks(seen: ClientView) -> None:
    lake, filled = seen.flush_lake, Filled(seen.flush_lake)
    filled.write(0)
    lake.flush()
    lake.dedup()
    fork = seen.fork("fork")
    assert fork.is_same(*BOTH) and len(fork.theirs("app.mine")) == 8, "a fork of a clean table is clean at once"
    grandchild = fork.fork("grandchild")
    shared = seen.ours("app.ours")
    fork.lake.run("UPDATE app.ours SET v = 'fork'; INSERT INTO app.ours VALUES (100, 'fork')")
    lake.lake.run("DELETE FROM app.ours WHERE id = 0; INSERT INTO app.ours VALUES (200, 'main')")
    lake.flush()
    assert seen.theirs("app.ours") == fork.theirs("app.ours") == shared, "until dedup"
    late = fork.fork("late")
    assert late.theirs("app.ours") == shared
    lake.dedup()
    lake.dedup(catalog="late")  # what it only inherited is merged if it is named
    for one in (seen, fork, grandchild, late):
        assert one.is_same(*BOTH), one.catalog
    assert grandchild.theirs("app.ours") == shared != seen.theirs("app.ours") != fork.theirs("app.ours")
    birth = fork.own_snapshots()[0]
    assert fork.theirs("app.ours", birth) == fork.ours("app.ours", birth) == shared
    assert birth not in seen.own_snapshots()
    with pytest.raises(Exception, match="snapshot"):
        fork.theirs("app.ours", seen.own_snapshots()[0])
    assert late.theirs("app.ours") == fork.theirs("app.ours")


def test_forks_of_tables_that_are_not_clean_show_an_earlier_state(seen: ClientView) -> None:
    lake = seen.flush_lake
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')")
    lake.flush()
    earlier, snapshot = seen.ours("app.ours"), seen.own_snapshots()[-1]
    lake.lake.run("UPDATE app.ours SET v = 'c' WHERE id = 1")
    lake.flush()
    fork = seen.fork("fork")
    assert fork.theirs("app.ours") == seen.theirs("app.ours") == earlier
    lake.dedup(catalog="main")
    assert seen.is_same("app.ours") and fork.theirs("app.ours") == earlier
    past = seen.fork("past", as_of=snapshot)
    assert past.theirs("app.ours") == past.ours("app.ours") == earlier
    lake.dedup(catalog="fork")
    assert fork.is_same("app.ours") and fork.theirs("app.ours") == seen.theirs("app.ours") != earlier


class Crash(BaseException):
    pass


def dying(*_: object) -> None:
    raise Crash


@pytest.mark.parametrize(("job", "mended_by"), [("flush", "a fork"), ("dedup", "the next flush")])
def test_a_publish_whose_job_died_is_checked_by_the_next_job(
    seen: ClientView, monkeypatch: pytest.MonkeyPatch, job: str, mended_by: str
) -> None:
    lake = seen.flush_lake
    lake.lake.run("INSERT INTO app.ours VALUES (1, 'a'), (2, 'b')")
    if job == "dedup":
        lake.flush()
        lake.lake.run("UPDATE app.ours SET v = 'c' WHERE id = 1")
        lake.flush()
    before = seen.theirs("app.ours")
    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(manifests, "note_clean", dying)
        lake.flush() if job == "flush" else lake.dedup()
    assert seen.theirs("app.ours") == before != seen.ours("app.ours"), "published, and nobody knows that it is clean"
    if mended_by == "a fork":
        fork = seen.fork("fork")
        assert fork.is_same("app.ours") and len(fork.theirs("app.ours")) == 2
    else:
        lake.flush()
    assert seen.is_same("app.ours")
