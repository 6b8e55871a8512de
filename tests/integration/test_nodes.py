"""Leases of nodes: two processes never make the same id, whatever they and their clocks do."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefork.catalog.connection import Connection, connect
from lakefork.errors import ConflictError, InvalidInputError
from lakefork.hot.seqids import PostgresNodeLease, Reservation, SeqIdGenerator
from lakefork.model.seqid import SeqId
from support.lake import rows_of

JOBS = Path(__file__).parents[2] / "jobs"
MakeGenerator = Callable[..., SeqIdGenerator]


class Machine:
    """Both clocks of a generator, moved by hand."""

    def __init__(self, ms: int = 10_000) -> None:
        self.ms = ms
        self.seconds = 0.0


@pytest.fixture
def make(dsn: str) -> MakeGenerator:
    def make_generator(machine: Machine | None = None, node_id: str = "n1", seconds: float = 60) -> SeqIdGenerator:
        lease = PostgresNodeLease(lambda: connect(dsn), node_id, seconds)
        if machine is None:
            return SeqIdGenerator(lease)
        return SeqIdGenerator(lease, clock_ms=lambda: machine.ms, monotonic=lambda: machine.seconds)

    return make_generator


def lease_node(
    connection: Connection, holder: str, first_ms: int, *, name: str = "n1", reserve_ms: int = 500, seconds: float = 60
) -> tuple[int, int, int]:
    query = f"SELECT * FROM lakefork.lease_node('{name}', '{holder}', {first_ms}, {reserve_ms}, {seconds})"
    return rows_of(connection, query)[0]


def expire(connection: Connection, holder: str) -> None:
    connection.execute("UPDATE lakefork.node SET expires_at = now() WHERE holder = %s", (holder,))


def hold_all_others(connection: Connection) -> None:
    """Nodes without a row get one that is held for 30 seconds."""
    connection.execute(
        "INSERT INTO lakefork.node SELECT i, 'x', 'x' || i, 0, 1, clock_timestamp() + interval '30 seconds' "
        "FROM generate_series(0, 1023) i ON CONFLICT DO NOTHING"
    )


def test_processes_of_one_name_never_make_the_same_id(dsn: str) -> None:
    program = (
        "import sys; from lakefork.catalog.connection import connect\n"
        "from lakefork.hot.seqids import PostgresNodeLease, SeqIdGenerator\n"
        "generator = SeqIdGenerator(PostgresNodeLease(lambda: connect(sys.argv[1]), 'n1'), clock_ms=lambda: 5)\n"
        "sys.stdout.buffer.write(generator.next_many(50_000).tobytes())"
    )
    command = [sys.executable, "-c", program, dsn]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(JOBS)}) for _ in range(4)]
    ids = np.concatenate([np.frombuffer(process.communicate()[0], dtype=np.int64) for process in running])
    assert len(ids) == len(np.unique(ids)) == 200_000


def test_two_generators_of_one_name_have_different_nodes(make: MakeGenerator) -> None:
    machine = Machine()
    one, two = make(machine), make(machine)
    ids = np.concatenate([generator.next_many(10_000) for generator in (one, two, one, two)])
    assert len(np.unique(ids)) == 40_000
    assert one.next().node != two.next().node


def test_racing_for_nodes_everybody_gets_another(dsn: str) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(64) as pool:
        connections = [stack.enter_context(connect(dsn)) for _ in range(64)]
        leased = list(pool.map(lambda number: lease_node(connections[number], f"h{number}", 1000), range(64)))
    assert len({node for node, _, _ in leased}) == 64


def test_racing_for_expired_nodes_everybody_gets_another(dsn: str, connection: Connection) -> None:
    hold_all_others(connection)
    connection.execute("UPDATE lakefork.node SET expires_at = '-infinity', until_ms = 9000 WHERE node < 40")
    with ExitStack() as stack, ThreadPoolExecutor(64) as pool:
        connections = [stack.enter_context(connect(dsn)) for _ in range(64)]

        def race(number: int) -> int:
            try:
                node, first_ms, _ = lease_node(connections[number], f"h{number}", 1000)
            except psycopg.Error as error:
                assert error.sqlstate == "LFC01"
                return -1
            assert first_ms == 9000
            return node

        nodes = list(pool.map(race, range(64)))
    assert sorted(nodes) == [-1] * 24 + list(range(40))


def test_renewing_races_with_taking_over(dsn: str, connection: Connection) -> None:
    """One free node: its holder renews while another takes it. Whoever wins, their ranges do not overlap."""
    node, _, until_ms = lease_node(connection, "old", 1000)
    hold_all_others(connection)
    with connect(dsn) as one, connect(dsn) as two, ThreadPoolExecutor(2) as pool:
        for _ in range(100):
            connection.execute(
                "UPDATE lakefork.node SET holder = 'old', expires_at = '-infinity' WHERE node = %s", (node,)
            )
            old, new = pool.submit(_try, one, "old", until_ms), pool.submit(_try, two, "new", until_ms)
            won = [leased for leased in (old.result(), new.result()) if leased]
            assert len(won) == 1 and won[0][:2] == (node, until_ms)
            until_ms = won[0][2]


def _try(connection: Connection, holder: str, first_ms: int) -> tuple[int, int, int] | None:
    try:
        return lease_node(connection, holder, first_ms)
    except psycopg.Error as error:
        assert error.sqlstate == "LFC01"
        return None


def test_an_expired_node_is_taken_over_after_its_range(connection: Connection) -> None:
    node, first_ms, until_ms = lease_node(connection, "one", 1000)
    assert (first_ms, until_ms) == (1000, 1500)
    hold_all_others(connection)
    expire(connection, "one")
    assert lease_node(connection, "two", 1200) == (node, 1500, 2000)
    expire(connection, "two")
    assert lease_node(connection, "three", 9000) == (node, 9000, 9500)


def test_a_holder_keeps_its_node_and_extends_its_range(connection: Connection) -> None:
    node, _, _ = lease_node(connection, "one", 1000)
    lease_node(connection, "two", 1000)
    assert lease_node(connection, "one", 1300) == (node, 1300, 1800)
    assert lease_node(connection, "one", 1100) == (node, 1100, 1800)
    expire(connection, "one")
    assert lease_node(connection, "one", 5000) == (node, 5000, 5500), "no other process took it"


def test_a_holder_whose_answer_got_lost_does_not_fall_into_the_range_before(connection: Connection) -> None:
    node, _, until_ms = lease_node(connection, "one", 1000)
    hold_all_others(connection)
    expire(connection, "one")
    lease_node(connection, "two", 1200)
    assert lease_node(connection, "two", 1201)[:2] == (node, until_ms)


def test_a_paused_generator_continues_beside_the_new_holder_of_its_node(
    connection: Connection, make: MakeGenerator
) -> None:
    machine = Machine()
    paused = make(machine)
    before = paused.next()
    hold_all_others(connection)
    connection.execute("UPDATE lakefork.node SET expires_at = '-infinity' WHERE node = %s", (before.node,))
    other = make(machine)
    theirs = other.next_many(5000)
    mine = paused.next_many(5000)
    assert {SeqId(theirs[0]).node, SeqId(mine[0]).node} == {before.node}
    assert not set(theirs.tolist()) & set(mine.tolist())
    connection.execute("UPDATE lakefork.node SET expires_at = '-infinity' WHERE node = 0")
    machine.seconds += 31
    after = paused.next()
    assert after.node == 0 and after > mine[-1]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["ids", "ids", "ids", "after", "clock", "pause", "expire", "expire", "close", "restart"]),
        st.integers(-90_000, 90_000),
    ),
    min_size=15,
    max_size=40,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_three_generators_and_two_nodes(connection: Connection, make: MakeGenerator, steps: list) -> None:
    """Wrong clocks, pauses, lost leases and restarts, with fewer nodes than generators: ids never repeat."""
    hold_all_others(connection)
    connection.execute("UPDATE lakefork.node SET holder = 'x' || node, until_ms = 1, first_ms = 0, "
                       "expires_at = CASE WHEN node < 2 THEN '-infinity' ELSE now() + interval '1 hour' END::timestamptz")  # fmt: skip
    machines = [Machine() for _ in range(3)]
    generators = [make(machine) for machine in machines]
    seen: list[int] = []
    last = [-1, -1, -1]
    for who, step, number in steps:
        if step in ("ids", "after"):
            after = max(seen, default=0) if step == "after" else None
            try:
                made = generators[who].next_many(5000, after=after).tolist()
            except ConflictError:
                continue
            assert made[0] > max(last[who], after or 0)
            seen += made
            last[who] = made[-1]
        elif step == "clock":
            machines[who].ms = max(0, machines[who].ms + number)
        elif step == "pause":
            machines[who].seconds += 31
        elif step == "expire":
            connection.execute("UPDATE lakefork.node SET expires_at = '-infinity' WHERE node < 2")
        elif step == "close":
            generators[who].close()
        else:
            generators[who], last[who] = make(machines[who]), -1
    assert len(seen) == len(set(seen))


def test_an_error_reports_that_all_nodes_are_in_use(connection: Connection, make: MakeGenerator) -> None:
    hold_all_others(connection)
    with pytest.raises(
        ConflictError,
        match=r"^all 1,024 nodes are in use: reduce the number of writing processes, or wait (29|30) seconds until a lease expires$",
    ):
        make().next()
    assert rows_of(connection, "SELECT count(*) FROM lakefork.node WHERE holder = 'x' || node") == [(1024,)]


def test_a_lease_runs_out_by_itself(connection: Connection) -> None:
    node, _, _ = lease_node(connection, "one", 1000, seconds=0.2)
    assert lease_node(connection, "two", 5000)[0] != node
    time.sleep(0.3)
    assert lease_node(connection, "three", 5000)[0] == node


def test_a_released_node_can_be_taken_and_keeps_its_mark(connection: Connection) -> None:
    node, _, until_ms = lease_node(connection, "one", 1000)
    hold_all_others(connection)
    connection.execute("SELECT lakefork.release_node(%s, 'two')", (node,))
    assert _try(connection, "two", 1000) is None, "only its holder can release a node"
    connection.execute("SELECT lakefork.release_node(%s, 'one')", (node,))
    assert lease_node(connection, "two", 1000) == (node, until_ms, until_ms + 500)


@pytest.mark.parametrize(("said", "kept"), [(1200, 1200), (400, 1000), (9000, 1500)])
def test_what_a_release_returns_lies_in_the_holders_own_range(connection: Connection, said: int, kept: int) -> None:
    node, _, _ = lease_node(connection, "one", 1000)
    connection.execute("SELECT lakefork.release_node(%s, 'one', %s)", (node, said))
    assert rows_of(connection, "SELECT until_ms FROM lakefork.node") == [(kept,)]


def test_short_lived_processes_do_not_push_time_ahead(connection: Connection, make: MakeGenerator) -> None:
    machine = Machine()
    ids = []
    for _ in range(20):
        with make(machine) as generator:
            ids.append(generator.next())
        machine.ms += 1
    assert [seq.milliseconds for seq in ids] == list(range(10_000, 10_020))
    assert rows_of(connection, "SELECT count(*) FROM lakefork.node") == [(1,)]


def test_a_node_that_ran_ahead_is_the_last_choice(connection: Connection, make: MakeGenerator) -> None:
    machine = Machine()
    with make(machine) as generator:
        ahead = SeqId(generator.next_many(1, SeqId.of(10**9, 0, 0))[0])
    again = make(machine).next()
    assert (again.milliseconds, again.node) == (10_000, (ahead.node + 1) % 1024)


def test_a_name_starts_at_its_own_node_and_goes_on_from_there(connection: Connection) -> None:
    first = {name: rows_of(connection, f"SELECT lakefork.first_node('{name}')")[0][0] for name in ("n1", "n2", "nöd")}
    assert first == {"n1": 875, "n2": 128, "nöd": 927}, "the same in every version of Postgres"
    got = [lease_node(connection, f"h{number}", 1000)[0] for number in range(30)]
    assert got == [(first["n1"] + number) % 1024 for number in range(30)]


def test_a_reservation_is_never_part_of_somebodys_transaction(dsn: str) -> None:
    with connect(dsn, autocommit=False) as busy:
        busy.execute("SELECT 1")
        with pytest.raises(InvalidInputError, match="in its own transaction"):
            PostgresNodeLease(lambda: busy, "n1").reserve("h", 0, 10)
    lease = PostgresNodeLease(lambda: connect(dsn, autocommit=False), "n1")
    reserved = lease.reserve("h", 1000, 10)
    assert reserved == Reservation(reserved.node, 1000, 1010, 60)
    with connect(dsn) as connection:
        assert rows_of(connection, "SELECT holder, node_id, until_ms FROM lakefork.node") == [("h", "n1", 1010)]


def test_a_reservation_survives_a_crash_even_where_commits_may_be_lost(connection: Connection) -> None:
    connection.execute("SET synchronous_commit = off")
    with connection.transaction():
        lease_node(connection, "one", 1000)
        assert rows_of(connection, "SHOW synchronous_commit") == [("local",)]
    assert rows_of(connection, "SHOW synchronous_commit") == [("off",)]


def test_other_isolation_levels_are_conflicts_at_worst(dsn: str, connection: Connection) -> None:
    def serializable() -> Connection:
        own = connect(dsn)
        own.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        return own

    def race(number: int) -> int:
        try:
            return PostgresNodeLease(serializable, "n1").reserve(f"h{number}", 1000, 10).node
        except ConflictError:
            return -number - 1

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(race, range(24)))) == 24


def test_postgres_takes_a_seq_as_a_bigint(connection: Connection, make: MakeGenerator) -> None:
    seq = make().next()
    assert connection.execute("SELECT %s::bigint AS seq", (seq,)).fetchone() == {"seq": seq}
