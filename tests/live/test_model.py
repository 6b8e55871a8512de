"""A model of live queries: random changes, late transactions, flushes, dedups, trims, kills of the server and reconnects.

LIVE_MODEL_ROUNDS makes it longer; it reports how many changes there were.
"""

import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import psycopg
from websockets.exceptions import ConnectionClosed, InvalidStatus

from support.api_server import ApiServer, running_server
from support.flush_lake import FlushLake
from support.live_client import LiveClient
from support.waiting import wait_until

ROUNDS = int(os.environ.get("LIVE_MODEL_ROUNDS", "4"))
STATEMENTS = 25  # per round
USERS = {"ada": range(20), "bob": range(100, 120)}
CONDITIONS = {"all": "true", "safe": "n > 50 OR v = 'x'", "worker": "n % 3 = 0"}


class Copy:
    """One user's client: it reconnects, resumes, and applies what it is told."""

    def __init__(self, server: ApiServer, user: str, table: str) -> None:
        self.server, self.user, self.table = server, user, table
        self.changes = self.resyncs = 0
        self.client: LiveClient | None = None
        self.connect()

    def connect(self) -> None:
        before, self.client = self.client, None
        self.client = wait_until(self._connected)
        if before is not None:
            self.client.resume.update(before.resume)
            self.client.copies.update({name: before.copies[name] for name in before.resume})
        for name, condition in CONDITIONS.items():
            resume = self.client.resume.get(name)
            options = {"resume": resume} if resume else {}
            self.client.subscribe(name, f"SELECT * FROM {self.table} WHERE {condition}", wait=False, **options)

    def _connected(self) -> LiveClient | None:
        with contextlib.suppress(OSError, InvalidStatus, ConnectionClosed, EOFError, TimeoutError):
            return LiveClient(self.server, self.server.token(self.user))
        return None

    def disconnect(self) -> None:
        assert self.client is not None
        self._count()
        self.client.close()

    def read(self, seconds: float) -> None:
        assert self.client is not None
        try:
            self.client.quiet(seconds)
        except ConnectionClosed:
            self._count()
            self.connect()

    def rows(self, name: str) -> dict[int, tuple[Any, Any]]:
        assert self.client is not None
        return {int(key): (row["v"], row["n"]) for key, row in self.client.copies[name].items() if not row["_deleted"]}

    def _count(self) -> None:
        """Each version once, since the client last read everything."""
        assert self.client is not None
        for messages in self.client.told.values():
            seen: set[str] = set()
            for message in messages:
                if message["type"] == "resync":
                    seen.clear()
                    self.resyncs += 1
                elif message["type"] == "change":
                    self.changes += 1
                    seq = str(message.get("new_values", {}).get("_seq", message["resume"]))
                    assert seq not in seen, message
                    seen.add(seq)
            messages.clear()


class Model:
    def __init__(self, flushes: FlushLake, server: ApiServer, table: str, seed: int) -> None:
        self.flushes, self.lake, self.server, self.table = flushes, flushes.lake, server, table
        self.random = random.Random(seed)  # noqa: S311 - a model
        self.lake.run(f"INSERT INTO {table} (id, n) VALUES (0, 0)", user="nobody")
        self.late: list[psycopg.Connection[Any]] = []
        self.next_late = 1_000
        self.statements = 0
        self.copies = [Copy(server, user, table) for user in USERS]

    def round(self, number: int) -> None:
        for _ in range(STATEMENTS):
            self.change()
            if self.random.random() < 0.1:
                self.random.choice([self.begin_late, self.end_late, self.reconnect])()
        if number % 2 == 0:
            self.flushes.flush(namespace=self.table.split(".")[0])
        if number % 3 == 1:
            self.kill()
        if number % 4 == 3:
            self.flushes.dedup(namespace=self.table.split(".")[0])
        while self.late:
            self.end_late()
        self.check()

    def change(self) -> None:
        user = self.random.choice(list(USERS))
        key, n, v = self.random.choice(USERS[user]), self.random.randrange(100), self.random.choice("xyz")
        table = self.table
        texts = [
            f"UPDATE {table} SET n = {n}, v = '{v}' WHERE id = {key}",
            f"UPDATE {table} SET n = n + 1 WHERE n < {n}",
            f"DELETE FROM {table} WHERE id = {key}",
            f"DELETE FROM {table} WHERE id = {key}; INSERT INTO {table} (id, n, v) VALUES ({key}, {n}, '{v}')",
        ]
        self.lake.run(self.random.choices(texts, [4, 1, 1, 4])[0], user=user)
        self.statements += 1

    def begin_late(self) -> None:
        """Takes a low _seq and stays open; its key is nobody else's."""
        found, user = self.lake.find(self.table), self.random.choice(list(USERS))
        hot = next(one for one in found.hot if one.definition is found.definition)
        connection = psycopg.connect(self.lake.dsn)
        self.next_late += 1
        connection.execute(
            f"INSERT INTO {hot.qualified} (catalog_id, _user_id, _seq, _deleted, c4, c5, c6) VALUES (%s, %s, %s, false, %s, 'late', 60)",
            (found.definition.catalog_id, user, int(self.lake.engine.resources.seqids.next()), self.next_late),
        )
        self.late.append(connection)

    def end_late(self) -> None:
        if self.late:
            connection = self.late.pop(self.random.randrange(len(self.late)))
            (connection.commit if self.random.random() < 0.7 else connection.rollback)()
            connection.close()

    def reconnect(self) -> None:
        one = self.random.choice(self.copies)
        one.read(0.01)
        one.disconnect()
        self.change()
        one.connect()

    def kill(self) -> None:
        before = self._workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        self.change()
        wait_until(lambda: self._workers() - before)

    def _workers(self) -> set[int]:
        with contextlib.suppress(psutil.Error):  # some are going just now
            return {worker.pid for worker in self.server.workers()}
        return set()

    def check(self) -> None:
        for one in self.copies:
            for name, condition in CONDITIONS.items():
                rows = self.lake.rows(f"SELECT id, v, n FROM {self.table} WHERE {condition}", user=one.user)
                expected = {int(key): (v, n) for key, v, n in rows}

                def is_equal(one: Copy = one, name: str = name, expected: Any = expected) -> bool:
                    one.read(0.05)
                    return one.rows(name) == expected

                wait_until(is_equal, f"equal for {one.user}, {name}: {expected}", seconds=60)


def test_copies_equal_the_table_at_every_quiet_moment(
    flush_lake: FlushLake, ns: str, make_settings: Any, tmp_path: Path
) -> None:
    with running_server(make_settings(), flush_lake.lake.dsn, tmp_path) as server:
        model = Model(flush_lake, server, f"{ns}.t", seed=ROUNDS)
        for number in range(ROUNDS):
            model.round(number)
        for one in model.copies:
            one.disconnect()
        changes, resyncs = (sum(getattr(one, what) for one in model.copies) for what in ("changes", "resyncs"))
        print(f"{model.statements} statements, {changes} changes told, {resyncs} resyncs")
        assert changes > 0
