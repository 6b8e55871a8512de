"""How a job is handed to spark-submit, by the CLI and by Airflow alike. Imports no pyspark."""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from lakefork.errors import SetupError
from lakefork.settings import PROJECT, Settings

JOBS_DIR = PROJECT / "jobs"
# A driver that is soon up, small and quiet: no web UI, no event log, one clear last line. Its JVM does little itself,
# so the quick compiler and the simple garbage collector are the better ones.
LOG4J = PROJECT / "include" / "log4j2.properties"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile=file:{LOG4J} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    ),
}


def submit_command(settings: Settings, job: str, arguments: list[str]) -> list[str]:
    spark_submit = shutil.which(
        "spark-submit", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if spark_submit is None:
        raise SetupError("spark-submit is not on the PATH: run `make setup`")
    conf = [item for pair in CONF.items() for item in ("--conf", "=".join(pair))]
    return [
        spark_submit, "--master", settings.spark.master, "--driver-memory", settings.spark.driver_memory, "--name", job,
        "--py-files", str(packaged_library()), *conf, str(JOBS_DIR / f"{job}.py"), *arguments,
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
    directory = Path(tempfile.gettempdir()) / f"lakefork-{os.geteuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    target = directory / f"lakefork-{digest.hexdigest()[:16]}.zip"
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
