"""Followed copies when processes die: runs, servers, connections; and under a load with an invariant."""

import subprocess
from collections.abc import Callable

import pytest

from lakefork.embedded.postgres import EmbeddedPostgres, binaries
from lakefork.errors import LakeforkError
from lakefork.settings import Settings
from support.copy_lab import until
from support.follow_lab import FollowLab
from support.killed import run_until_killed

BALANCES = (
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), "
    "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history)"
)


def pgbench(lab: FollowLab, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [str(binaries() / "pgbench"), *arguments, lab.source]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_copy_under_pgbench_is_followed_and_its_balances_agree(lab: FollowLab) -> None:
    """Whole transactions: at every moment the four sums of the target are the same."""
    assert pgbench(lab, "-i", "-s", "1", "-q").wait() == 0
    with pgbench(lab, "-c", "3", "-t", "1000000", "-n") as load:
        try:
            lab.begin(replica_identity_full=True)
            for _ in range(4):
                lab.follow()
                ((accounts, tellers, branches, history),) = lab.on_target(BALANCES)
                assert accounts == tellers == branches == (history or 0)
            assert load.poll() is None, "it still writes"
        finally:
            load.terminate()
    until(lambda: lab.on_source("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'") == [(0,)])
    lab.follow()
    assert lab.differences() == []
    assert lab.on_target(BALANCES) == lab.on_source(BALANCES)


def test_a_run_that_is_killed_leaves_rows_and_position_together(lab: FollowLab) -> None:
    """kill -9 when rows were sent, and not committed."""
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY, n int)")
    lab.begin()
    lab.on_source("INSERT INTO t SELECT n, 0 FROM generate_series(1, 500) n")
    run_until_killed("postgres_follow", "transfer.follow.into_postgres.send_rows", lab.dsn, copy_id="one")
    lab.on_source("UPDATE t SET n = n + 1")
    until(
        lambda: (
            lab.catalog("SELECT count(*) FROM lakefork.lease WHERE name = 'follow/one' AND expires_at > now()")
            == [(0,)]
        )
    )
    lab.follow()
    assert lab.on_target("SELECT count(*), sum(n) FROM t") == [(500, 500)]
    assert lab.differences() == []


def test_a_source_that_restarts_is_followed_on(
    lab: FollowLab, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(make_settings(), server_options={"fsync": "off", "wal_level": "logical"})
    first, lab.source = lab.source, server.start()
    monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", lab.source)
    try:
        restart_between_runs(lab, server)
    finally:
        lab.source = first
        server.stop()


def restart_between_runs(lab: FollowLab, logical: EmbeddedPostgres) -> None:
    lab.on_source("CREATE TABLE t (id int PRIMARY KEY)")
    lab.begin()
    lab.on_source("INSERT INTO t VALUES (1)")
    lab.follow()
    lab.on_source("INSERT INTO t VALUES (2)")
    logical.stop()
    with pytest.raises(LakeforkError, match="cannot connect to 'src'"):
        lab.follow()
    logical.start()
    lab.on_source("INSERT INTO t VALUES (3)")
    lab.follow()
    assert lab.differences() == [] and lab.on_target("SELECT count(*) FROM t") == [(3,)]
    assert lab.follow()["changes"] == 0
