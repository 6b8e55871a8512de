"""What is pinned is what is installed."""

import base64
import hashlib
import importlib.metadata as metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {_name(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).strip().lower()


def _requirements(file: str) -> list[str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    return [_name(line) for line in lines if line and not line.startswith("-")]


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_every_requirement_is_pinned_and_installed_so(file: str) -> None:
    pins = _pins()
    for name in _requirements(file):
        assert metadata.version(name) == pins[name], name


def test_what_the_user_fixed_is_required() -> None:
    fixed = {
        "apache-airflow", "apache-airflow-providers-apache-spark", "apache-airflow-providers-postgres", "pyspark", "pyarrow",
        "great-expectations",
    }  # fmt: skip
    assert fixed <= set(_requirements("requirements.txt"))
    assert "pytest" in _requirements("requirements-dev.txt")


def test_the_installed_pyspark_files_are_those_of_pyspark() -> None:
    """pyspark-client brings the same directory; both are pinned to one version and the full package must have won."""
    assert metadata.version("pyspark") == metadata.version("pyspark-client")
    files = metadata.files("pyspark") or []
    assert any(str(file).endswith("pyspark/bin/spark-submit") for file in files)
    wrong = [
        str(file)
        for file in files
        if file.hash and str(file).startswith("pyspark/") and str(file).endswith(".py")
        and _digest(Path(file.locate())) != file.hash.value
    ]  # fmt: skip
    assert wrong == []


def _digest(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
