"""The documents match the tree: rooms, scenarios and links."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_architecture_names_every_room() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rooms = {path.name for path in (ROOT / "jobs/lakefork").iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"lakefork/{room}/" not in text} == set()


def test_scenarios_that_tests_name_are_described() -> None:
    described = set(re.findall(r"^(\d+)\. \*\*", (ROOT / "docs/scenarios.md").read_text(), re.MULTILINE))
    named = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for numbers in re.findall(r"[Ss]cenarios? (\d+(?:(?:, | and )\d+)*)", path.read_text()):
            named |= set(re.findall(r"\d+", numbers))
    assert "4" in named
    assert named - described == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []
