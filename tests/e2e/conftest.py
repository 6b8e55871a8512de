"""One stack for the files test_stack*.py, which run in the order of their names; the last one stops it."""

import re
from collections.abc import Iterator

import pytest

from support.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack") / "home")
    up = stack.lakefork("stack", "up", "--no-history")
    assert up.returncode == 0, up.stdout + up.stderr
    assert re.search(r"Airflow: +\d+ s, waiting for", up.stdout) and "Airflow is ready after" in up.stdout
    assert f"login: admin / {stack.secrets['airflow-login']}" in up.stdout
    yield stack
    stack.lakefork("stack", "down")
    assert stack.processes() == []
