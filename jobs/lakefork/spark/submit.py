"""How a job is handed to spark-submit, by the CLI and by Airflow alike. Imports no pyspark."""

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from lakefork.errors import SetupError
from lakefork.settings import PROJECT, Settings

JOBS_DIR = PROJECT / "jobs"
# A driver that is soon up, small and quiet: no web UI, no event log, one clear last line. Its JVM does little itself,
# so the quick compiler and the simple garbage collector are the better ones.
LOG4J = PROJECT / "include" / "log4j2.properties"
JVM_OPTIONS = "spark.driver.extraJavaOptions"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.executor.processTreeMetrics.enabled": "true",  # for system.jobs: what executors on a cluster need
    "spark.executor.heartbeatInterval": "2s",
    JVM_OPTIONS: f"-Dlog4j2.configurationFile=file:{LOG4J} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def quick_start() -> Iterator[dict[str, str]]:
    """CONF with shared classes: the first run on a machine archives what it loaded, later ones start with that."""
    archive = _class_archive()
    recording = archive.with_suffix(f".{os.getpid()}")
    option = f"-XX:SharedArchiveFile={archive}" if archive.exists() else f"-XX:ArchiveClassesAtExit={recording}"
    # A JVM's remarks on archives would follow the job's result on stdout.
    yield {**CONF, JVM_OPTIONS: f"{CONF[JVM_OPTIONS]} -Xlog:disable -Xlog:all=error:stderr {option}"}
    if recording.exists():
        recording.replace(archive)


def _class_archive() -> Path:
    """One per Java and Spark; a JVM ignores an archive that does not fit."""
    home = os.environ.get("JAVA_HOME")
    java = Path(f"{home}/bin/java" if home else shutil.which("java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    digest = hashlib.sha256(f"{java} {changed} {version('pyspark')}".encode()).hexdigest()[:16]
    return _scratch_directory() / f"classes-{digest}.jsa"


def _scratch_directory() -> Path:
    directory = Path(tempfile.gettempdir()) / f"lakefork-{os.geteuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SetupError(f"{directory} must be a directory of yours with mode 0700: remove it, whoever made it")
    return directory


def submit_command(settings: Settings, job: str, arguments: list[str], conf: dict[str, str]) -> list[str]:
    spark_submit = shutil.which(
        "spark-submit", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if spark_submit is None:
        raise SetupError("spark-submit is not on the PATH: run `make setup`")
    options = [item for pair in conf.items() for item in ("--conf", "=".join(pair))]
    return [
        spark_submit, "--master", settings.spark.master, "--driver-memory", settings.spark.driver_memory, "--name", job,
        "--py-files", str(packaged_library()), *options, str(JOBS_DIR / f"{job}.py"), *arguments,
    ]  # fmt: skip


def packaged_library() -> Path:
    """The library as a zip for executors on other machines; made once per content."""
    sources = sorted(
        path
        for path in (JOBS_DIR / "lakefork").rglob("*")
        if path.suffix in (".py", ".sql", ".typed") and path.is_file()
    )
    digest = hashlib.sha256()
    for path in sources:
        digest.update(str(path.relative_to(JOBS_DIR)).encode() + b"\0" + path.read_bytes())
    target = _scratch_directory() / f"lakefork-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        scratch = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sources:
                archive.write(path, path.relative_to(JOBS_DIR))
        scratch.replace(target)
    return target


def submit_environment(dsn: str, master: str) -> dict[str, str]:
    """Secrets reach the driver by environment, never by argument."""
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") else {}
    return {"LAKEFORK_DSN": dsn, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **local}
