"""Settings: the file, the environment over it, and one sentence for each mistake."""

import tomllib
from pathlib import Path

import pytest

from lakefork import settings as module
from lakefork.errors import SetupError
from lakefork.settings import CONFIG_FILE, Section, Settings, load_settings


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    load_settings.cache_clear()


def test_the_file_lists_every_key_with_its_default() -> None:
    listed = tomllib.loads(CONFIG_FILE.read_text())
    sections = {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }
    assert listed == {name: section().model_dump() for name, section in sections.items()}
    for line in CONFIG_FILE.read_text().splitlines():
        assert line == "" or line.startswith(("#", "[")) or "=" in line


def test_the_environment_overrides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAKEFORK_SPARK__MASTER", "spark://m:7077")
    monkeypatch.setenv("LAKEFORK_JOBS__LEASE_SECONDS", "30")
    monkeypatch.setenv("LAKEFORK_DSN", "postgresql://h/db")
    monkeypatch.setenv("LAKEFORK_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEFORK_NODE_ID", "n1")
    loaded = load_settings()
    assert (loaded.spark.master, loaded.jobs.lease_seconds, loaded.dsn) == ("spark://m:7077", 30, "postgresql://h/db")
    assert (loaded.home, loaded.node_id) == (tmp_path, "n1")
    assert loaded.spark.driver_memory == "1g"


def test_credentials_that_storage_locations_name_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "CATALOGS"):
        monkeypatch.setenv(f"LAKEFORK_S3_OTHER_VAULT_{part}", "hidden")
    assert "hidden" not in repr(load_settings())


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("LAKEFORK_SPARK__MASTERS", "x", "setting spark.masters is not known"),
        ("LAKEFORK_SPRAK__MASTER", "x", "LAKEFORK_SPRAK__MASTER is set, but Lakefork has no such setting"),
        ("LAKEFORK_S3_VAULT", "x", "LAKEFORK_S3_VAULT is set, but Lakefork has no such setting"),
        ("LAKEFORK_S3_VAULT_SECRET", "x", "LAKEFORK_S3_VAULT_SECRET is set, but Lakefork has no such setting"),
        ("LAKEFORK_S3_vault_CATALOGS", "x", "LAKEFORK_S3_vault_CATALOGS is set, but Lakefork has no such setting"),
        ("LAKEFORK_NODEID", "x", "LAKEFORK_NODEID is set, but Lakefork has no such setting"),
        ("LAKEFORK_AIRFLOW__PORT", "x", "setting airflow.port = 'x': "),
        ("LAKEFORK_AIRFLOW__PORT", "70000", "setting airflow.port = '70000': "),
        ("LAKEFORK_SPARK__DRIVER_MEMORY", "much", "setting spark.driver_memory = 'much': "),
        ("LAKEFORK_JOBS__LEASE_SECONDS", "0", "setting jobs.lease_seconds = '0': "),
        ("LAKEFORK_NODE_ID", "", "setting node_id = '': "),
    ],
)
def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SetupError) as caught:
        load_settings()
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "lakefork.toml"
    broken.write_text("[spark\n")
    monkeypatch.setitem(module.Settings.model_config, "toml_file", broken)
    with pytest.raises(SetupError, match="cannot be read"):
        load_settings()
