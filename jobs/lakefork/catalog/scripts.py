"""Reads the SQL files of schema/, the one place that defines the catalog."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from lakefork.resources import resource

SCHEMA_FILE = resource("schema/postgresql.sql")
CODE_FILE = resource("schema/code.sql")  # the part that `lakefork upgrade` makes again
DROP_CODE_FILE = resource("schema/drop_code.sql")
GRANT_AGAIN_FILE = resource("schema/grant_again.sql")
PUBLIC_RIGHTS_FILE = resource("schema/public_rights.sql")
AIRFLOW_FILE = resource("schema/airflow.sql")
UPGRADES_DIRECTORY = resource("schema/upgrades")


def read_script(path: Path = SCHEMA_FILE) -> str:
    """Returns the script for the caller's transaction: `\\ir` replaced by the file, without other psql commands."""
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith("\\ir "):
            lines.append(read_script(path.parent / line.removeprefix("\\ir ").strip()))
        elif not line.startswith("\\") and line not in ("BEGIN;", "COMMIT;"):
            lines.append(line)
    return "\n".join(lines)


@functools.cache
def schema_digest() -> str:
    """Returns what the schema of this Lakefork is recognised by: a digest of all its files."""
    digest = hashlib.sha256()
    for path in sorted(SCHEMA_FILE.parent.rglob("*.sql")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class UpgradeScript:
    """One change of tables."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def purpose(self) -> str:
        """Its first line, a comment."""
        return self.path.read_text().partition("\n")[0].removeprefix("--").strip()


def upgrade_scripts() -> list[UpgradeScript]:
    """Returns all scripts in the order in which they are applied."""
    return [UpgradeScript(path) for path in sorted(UPGRADES_DIRECTORY.glob("*.sql"))]
