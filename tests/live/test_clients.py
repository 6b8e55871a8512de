"""The Python client and `lakefork subscribe`, against a real server."""

import json
import os
import signal
import subprocess
import sys

from support.api_server import ApiServer
from support.sql_lake import SqlLake

ADA = {"user": "ada"}


def test_the_client_yields_messages_and_resumes(api: ApiServer, lake: SqlLake, ns: str) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a')", **ADA)
    with api.client("ada") as client:
        messages = client.subscribe(f"SELECT id, v FROM {ns}.t")
        assert next(messages)["rows"] == [{"id": 1, "v": "a"}]
        lake.run(f"UPDATE {ns}.t SET v = 'b' WHERE id = 1", **ADA)
        told = next(messages)
        assert told["new_values"]["v"] == "b"
        messages.close()
        lake.run(f"DELETE FROM {ns}.t WHERE id = 1", **ADA)
        again = client.subscribe(f"SELECT id, v FROM {ns}.t", resume=told["resume"])
        assert [next(again)["type"], next(again)["change_type"]] == ["initial_data", "DELETE"]
        again.close()


def test_the_command_prints_rows_as_they_change(api: ApiServer, lake: SqlLake, ns: str) -> None:
    lake.run(f"INSERT INTO {ns}.t (id, v) VALUES (1, 'a')", **ADA)
    environment = {**os.environ, "LAKEFORK_API_TOKEN": api.token("ada")}
    command = [sys.executable, "-m", "lakefork.cli.main", "subscribe", f"SELECT id, v FROM {ns}.t", "--url", api.url]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(lines) == '+ id=1 v="a"\n'
        lake.run(f"UPDATE {ns}.t SET v = 'b' WHERE id = 1; DELETE FROM {ns}.t WHERE id = 1", **ADA)
        assert [next(lines), next(lines)] == ['~ id=1 v="b"\n', '- id=1 v="b" _deleted=true\n']
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_the_command_says_what_is_wrong(api: ApiServer, ns: str) -> None:
    environment = {**os.environ, "LAKEFORK_API_TOKEN": api.token("ada")}
    command = [
        sys.executable,
        "-m",
        "lakefork.cli.main",
        "subscribe",
        f"SELECT count(*) FROM {ns}.t",
        "--url",
        api.url,
        "--json",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "aggregates" in json.loads(done.stdout or done.stderr)["error"]["message"]
