"""The catalog in tests/fixtures/old_catalog, restored as if it had always been in this Postgres."""

import gzip
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lakefork.embedded.postgres import binaries
from lakefork.sql.engine import Engine
from lakefork.sql.results import dumps
from lakefork.sql.session import Role, Session

FIXTURE = Path(__file__).parents[1] / "fixtures" / "old_catalog"
PLACEHOLDER = "@DATA@"


@dataclass(frozen=True)
class Expectation:
    catalog: str
    user: str | None
    sql: str
    result: list[Any]

    def found(self, engine: Engine) -> list[Any]:
        session = Session(self.catalog, self.user, Role.USER if self.user else Role.ADMIN)
        return [json.loads(dumps(result.as_json())) for result in engine.execute(session, self.sql)]


def expectations(data: Path) -> list[Expectation]:
    text = (FIXTURE / "expected.json").read_text().replace(PLACEHOLDER, str(data))
    return [Expectation(**one) for one in json.loads(text)]


def restore_files(data: Path) -> None:
    shutil.copytree(FIXTURE / "data", data)
    for file in data.rglob("*.json"):
        file.write_text(file.read_text().replace(PLACEHOLDER, str(data)))


def restore_database(dsn: str, data: Path) -> None:
    """Into an empty database."""
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password", "PGDATABASE": "dbname"}
    environment = {variable: parts[name] for variable, name in names.items()}
    script = gzip.decompress((FIXTURE / "database.sql.gz").read_bytes()).decode().replace(PLACEHOLDER, str(data))
    command: list[str | Path] = [binaries() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run(command, input=script, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE lakefork.watermark SET cluster_id = lakefork.cluster_id()")
        # Transactions of this Postgres come after those that the watermarks and the hot rows name.
        connection.execute(
            """DO $$ BEGIN
                WHILE pg_current_xact_id() <= (SELECT max(pg_snapshot_xmax(seen::pg_snapshot)) FROM lakefork.watermark) LOOP
                    COMMIT;
                END LOOP;
            END $$"""
        )
