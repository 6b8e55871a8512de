"""docker-compose.yaml: what it promises about services, secrets and ports, read without an engine."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefork.embedded.airflow import SPARK_POOL
from lakefork.resources import resource
from lakefork.settings import Settings

COMPOSE_FILE = resource("docker-compose.yaml")
DOCKER = resource("include/docker")
COMPOSE = yaml.safe_load(COMPOSE_FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"airflow-init", "minio-init"}
LONG_RUNNING = sorted(SERVICES.keys() - ONE_SHOT)
AIRFLOW = {"airflow-init", "airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
SPARK_WORKERS = {"spark-worker-1", "spark-worker-2"}

REQUIRED = re.compile(r"\$\{([A-Z0-9_]+):\?[^}]+\}")
FROM_ENVIRONMENT = "<from the environment>"
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|KEY|CONN|DSN")
URL_PASSWORD = re.compile(r"://[^:/@]*:([^@/]*)@")


def required_variables() -> set[str]:
    return set(REQUIRED.findall(COMPOSE_FILE.read_text()))


def example_variables() -> dict[str, str]:
    lines = (DOCKER / "env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def secret_parts(name: str, value: str) -> list[str]:
    """What of a value must come from the environment: all of a password, the password of a URL or of a JSON object."""
    if value.startswith("{"):
        return [json.loads(value)["password"]] if '"password"' in value else []
    if passwords := URL_PASSWORD.findall(value):
        return passwords
    return [value] if SECRET_NAME.search(name) and not name.endswith("_FILE") else []


def all_secret_parts() -> list[tuple[str, str, str]]:
    return [
        (service, name, part)
        for service, definition in SERVICES.items()
        for name, value in definition.get("environment", {}).items()
        for part in secret_parts(name, REQUIRED.sub(FROM_ENVIRONMENT, str(value or FROM_ENVIRONMENT)))
    ]


def copied_into_image() -> list[str]:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    return [source for line in lines if line.startswith("COPY ") for source in shlex.split(line)[1:-1]]


def test_has_a_service_for_each_part_of_the_stack() -> None:
    assert SERVICES.keys() == AIRFLOW | SPARK_WORKERS | {
        "postgres", "minio", "minio-init", "spark-master", "lakefork-api",
    }  # fmt: skip


def test_airflow_runs_tasks_itself() -> None:
    assert {SERVICES[name]["environment"]["AIRFLOW__CORE__EXECUTOR"] for name in AIRFLOW} == {"LocalExecutor"}


def test_airflow_and_spark_share_one_image_that_is_built_once() -> None:
    ours = AIRFLOW | SPARK_WORKERS | {"spark-master", "lakefork-api"}
    assert len({SERVICES[name]["image"] for name in ours}) == 1
    assert [name for name in SERVICES if "build" in SERVICES[name]] == ["airflow-init"]


def test_two_workers_join_the_master() -> None:
    worker_class = "org.apache.spark.deploy.worker.Worker"
    workers = {name for name, service in SERVICES.items() if worker_class in service["command"]}
    assert workers == SPARK_WORKERS
    assert {SERVICES[name]["command"][-1] for name in workers} == {"spark://spark-master:7077"}


@pytest.mark.parametrize("name", [*sorted(SPARK_WORKERS), "airflow-scheduler"])
def test_spark_processes_are_reachable_by_their_host_name(name: str) -> None:
    assert SERVICES[name]["hostname"] == SERVICES[name]["environment"]["SPARK_LOCAL_HOSTNAME"] == name


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_long_running_service_is_checked_and_restarted(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_dependencies_exist_and_can_be_met(name: str) -> None:
    for other, wanted in SERVICES[name].get("depends_on", {}).items():
        condition = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        assert other in SERVICES
        assert wanted["condition"] == condition


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_ports_are_published_on_the_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_containers_are_named_by_compose(name: str) -> None:
    assert "container_name" not in SERVICES[name]


def test_secrets_come_from_the_environment() -> None:
    found = all_secret_parts()
    assert {name for _, name, _ in found} >= {
        "POSTGRES_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "LAKEFORK_DSN",
        "AIRFLOW_CONN_LAKEFORK",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "MC_HOST_lake",
    }
    assert [entry for entry in found if entry[2] != FROM_ENVIRONMENT] == []


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("ANY_PASSWORD", "x", "x"),
        ("ANY_DSN", "host=any password=x", "host=any password=x"),
        ("ANY_URL", "http://user:x@host/", "x"),
        ("ANY_CONN", '{"login": "user", "password": "x"}', "x"),
    ],
)
def test_a_literal_secret_would_be_seen(name: str, value: str, part: str) -> None:
    assert secret_parts(name, value) == [part]


def test_example_lists_the_required_variables_without_values() -> None:
    assert example_variables() == dict.fromkeys(required_variables(), "")


def test_example_says_how_to_make_each_value() -> None:
    lines = (DOCKER / "env.example").read_text().splitlines()
    made = {line.rstrip("=") for before, line in itertools.pairwise(lines) if "openssl rand" in before}
    assert made == required_variables()


def test_example_lists_the_optional_variables_with_their_defaults() -> None:
    used = dict(re.findall(r"\$\{([A-Z0-9_]+):-([^}]*)\}", COMPOSE_FILE.read_text()))
    listed = dict(re.findall(r"^# ([A-Z0-9_]+)=(.*)$", (DOCKER / "env.example").read_text(), re.MULTILINE))
    assert listed == used


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_lakefork_variables_are_settings(name: str) -> None:
    """An unknown one would stop every process at its start."""
    for variable in SERVICES[name].get("environment", {}):
        if variable.startswith("LAKEFORK_"):
            section, *key = variable.removeprefix("LAKEFORK_").lower().split("__")
            field = Settings.model_fields[section]
            assert not key or key[0] in field.annotation.model_fields


def test_metrics_can_be_configured() -> None:
    passed_on = {name for name, value in SERVICES["airflow-scheduler"]["environment"].items() if value is None}
    assert passed_on >= {"LAKEFORK_METRICS__TOKEN", "AIRFLOW__METRICS__STATSD_ON", "AIRFLOW__METRICS__OTEL_ON"}


def test_set_up_makes_the_pool_that_the_dags_use() -> None:
    assert f"airflow pools set {SPARK_POOL} " in (DOCKER / "airflow-init.sh").read_text()


def test_the_superuser_takes_from_public_what_the_catalogs_owner_cannot() -> None:
    mounted = [volume.split(":")[:2] for volume in SERVICES["postgres"]["volumes"]]
    (script,) = [inside for outside, inside in mounted if outside == "./schema/public_rights.sql"]
    roles = (DOCKER / "postgres" / "10-roles.sql").read_text()
    assert roles.index("CREATE ROLE airflow") < roles.index("ALTER DATABASE") < roles.index(f"\\i {script}")


def test_what_containers_take_from_the_repository_exists() -> None:
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    words = [word for service in SERVICES.values() for word in service["command"]]
    build = SERVICES["airflow-init"]["build"]
    paths = [
        *(mount for mount in mounts if mount.startswith(".")),
        *(word for word in words if word.startswith("include/")),
        *copied_into_image(),
        f"{build['context']}/{build['dockerfile']}",
    ]
    assert [path for path in paths if not resource(path).exists()] == []
    assert {mount for mount in mounts if not mount.startswith(".")} == COMPOSE["volumes"].keys()


def test_only_what_the_image_needs_is_sent_to_its_build() -> None:
    rules = [line for line in resource(".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == set(copied_into_image())


def test_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


def compose_program() -> list[str]:
    for program in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(program[0]):
            found = subprocess.run([*program, "version"], capture_output=True, check=False)
            if found.returncode == 0:
                return program
    pytest.skip("neither `docker compose` nor docker-compose is installed")


def compose_config(variables: dict[str, str], env_file: Path) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if name not in required_variables()}
    env_file.touch()  # an empty one, so that a .env of the developer is not read
    return subprocess.run(
        [*compose_program(), "--env-file", str(env_file), "--file", str(COMPOSE_FILE), "config", "--quiet"],
        env={**others, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    done = compose_config(dict.fromkeys(required_variables(), "dummy"), tmp_path / "env")
    assert done.returncode == 0, done.stderr


def test_compose_refuses_to_start_without_secrets(tmp_path: Path) -> None:
    done = compose_config({}, tmp_path / "env")
    assert done.returncode != 0
    assert "include/docker/env.example" in done.stderr
