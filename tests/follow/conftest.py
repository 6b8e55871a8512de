"""A server that sends its changes, with a source of its own for each test; the target lies on the suite's server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lakefork.embedded.postgres import EmbeddedPostgres
from lakefork.settings import Settings
from support.copy_lab import fresh_database, until
from support.follow_lab import FollowLab


@pytest.fixture
def lab(
    postgres: str,
    dsn: str,
    logical: EmbeddedPostgres,
    spark: Any,
    make_settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[FollowLab]:
    with fresh_database(logical.url()) as source, fresh_database(postgres) as target:
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__SRC", source)
        monkeypatch.setenv("LAKEFORK_CONNECTIONS__DST", target)
        lab = FollowLab(postgres, dsn, source, target, make_settings())
        try:
            yield lab
        finally:
            lab.on_source("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            until(lambda: lab.on_source("SELECT count(*) FROM pg_replication_slots WHERE active") == [(0,)])
            lab.on_source("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
