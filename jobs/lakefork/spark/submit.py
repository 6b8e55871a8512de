"""Builds the spark-submit command of a job, for the CLI and for Airflow. Imports no pyspark."""

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
from lakefork.resources import resource
from lakefork.settings import Settings

JOBS_DIR = resource("jobs")
LIBRARY = Path(__file__).parents[1]
# A small and quiet driver that starts quickly: no web UI, no event log, one clear last line. Its JVM does little work,
# so the fast compiler and the simple garbage collector are better.
LOG4J = resource("include/log4j2.properties")
JVM_OPTIONS = "spark.driver.extraJavaOptions"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.executor.processTreeMetrics.enabled": "true",  # memory of executors on a cluster, for system.jobs
    "spark.executor.heartbeatInterval": "2s",
    JVM_OPTIONS: f"-Dlog4j2.configurationFile=file:{LOG4J} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextmanager
def quick_start() -> Iterator[dict[str, str]]:
    """Yields CONF with class data sharing: the first run on a machine archives its classes, later runs load them."""
    archive = _class_archive()
    recording = archive.with_suffix(f".{os.getpid()}")
    option = f"-XX:SharedArchiveFile={archive}" if archive.exists() else f"-XX:ArchiveClassesAtExit={recording}"
    # Otherwise a JVM's messages about archives would follow the job's result on stdout.
    yield {**CONF, JVM_OPTIONS: f"{CONF[JVM_OPTIONS]} -Xlog:disable -Xlog:all=error:stderr {option}"}
    if recording.exists():
        recording.replace(archive)


def _class_archive() -> Path:
    """Returns the archive for this Java and Spark; a JVM ignores one that does not match."""
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
        raise SetupError(f"{directory} must be a directory that you own with mode 0700: remove it")
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
    """Returns the library as a zip for executors on other machines; created once per content."""
    sources = sorted(
        path
        for path in LIBRARY.rglob("*")
        if path.suffix in (".py", ".sql", ".typed") and path.is_file() and "_resources" not in path.parts
    )
    digest = hashlib.sha256()
    for path in sources:
        digest.update(str(path.relative_to(LIBRARY.parent)).encode() + b"\0" + path.read_bytes())
    target = _scratch_directory() / f"lakefork-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        scratch = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sources:
                archive.write(path, path.relative_to(LIBRARY.parent))
        scratch.replace(target)
    return target


def submit_environment(dsn: str, master: str) -> dict[str, str]:
    """Returns the driver's environment; secrets are never passed as arguments."""
    local = {"SPARK_LOCAL_IP": "127.0.0.1"} if master.startswith("local") else {}
    return {"LAKEFORK_DSN": dsn, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **local}
