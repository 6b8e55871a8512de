"""`lakefork copy`: what it prints, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakefork.cli.main import _parser
from lakefork.errors import InvalidInputError, NotFoundError
from lakefork.settings import load_settings
from support.copy_lab import CopyLab


@pytest.fixture(autouse=True)
def _environment(lab: CopyLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEFORK_DSN", lab.dsn)
    load_settings.cache_clear()


def lakefork(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    arguments = _parser().parse_args(["copy", *words])
    return arguments.run(arguments), capsys.readouterr().out


def test_copies_are_listed_compared_and_given_up(lab: CopyLab, capsys: pytest.CaptureFixture[str]) -> None:
    assert lakefork(capsys, "status") == (0, "no copy was made\n")
    lab.on_source(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n; ANALYZE"
    )
    code, text = lakefork(capsys, "list-parts", "--source", "src", "--split-larger-than", "500KB", "--json")
    parts = json.loads(text)
    assert (
        code == 0 and [part["part"] for part in parts] == [1, 2, 3] and {part["split_by"] for part in parts} == {"id"}
    )
    lab.copy(copy_id="one", split_larger_than="500KB")
    code, text = lakefork(capsys, "status")
    assert text.startswith("one  src -> dst  completed: 3 of 3 part(s), ")
    assert lakefork(capsys, "compare", "one") == (0, "source and target are equal\n")
    lab.on_target("DELETE FROM t WHERE id = 1")
    code, text = lakefork(capsys, "compare", "one")
    assert (
        code == 1 and text == "public.t part 1 of 3 has 666 row(s) on the source and 665 on the target\n"
    ) or "on the source and" in text
    with pytest.raises(InvalidInputError, match="copy one is completed: there is nothing to abandon"):
        lakefork(capsys, "abandon", "one")
    with pytest.raises(InvalidInputError, match="lakefork copy resume needs a COPY_ID"):
        lakefork(capsys, "resume")
    with pytest.raises(NotFoundError, match="copy 'two' does not exist"):
        lakefork(capsys, "compare", "two")


def test_the_command_says_what_the_job_is_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr("lakefork.cli.jobs.run", lambda arguments: begun.append(json.loads(arguments.params)) or 0)
    lakefork(
        capsys, "--source", "src", "--into", "main", "--include", "app.*", "--include", "log.x", "--owner-column", "app.notes=owner", "--no-compare",
        "--table-jobs", "2", "--copy-id", "one",
    )  # fmt: skip
    assert begun == [
        {
            "source": "src", "into": "main", "include": ["app.*", "log.x"], "owner_columns": {"app.notes": "owner"}, "compare": False, "table_jobs": 2,
            "copy_id": "one",
        }
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="write TABLE=COLUMN"):
        lakefork(capsys, "--source", "src", "--into", "main", "--owner-column", "app.notes")
