"""Commands about jobs: runs, audits, plans of retention."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from lakefork.cli.answers import database, respond
from lakefork.resources import resource


def add_parsers(commands: Any) -> None:
    for add in (_add_run, _add_gc, _add_audits, _add_undelete):
        add(commands)


def _job_names() -> list[str]:
    """Lists the jobs without importing them, which would take longer than --help."""
    return sorted(path.stem for path in resource("jobs").glob("*.py"))


def _add_run(commands: Any) -> None:
    parser = commands.add_parser("run", help="run one job with spark-submit, without Airflow")
    job = parser.add_argument("job", metavar="JOB", help=f"one of {', '.join(_job_names())}")
    job.suggestions = _job_names()  # for completion; a wrong one is refused with the list
    parser.add_argument("--params", default="{}", metavar="JSON", help="the job's parameters as one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.embedded.database import database_url
    from lakefork.errors import JobFailedError
    from lakefork.model.params import parse_params
    from lakefork.settings import load_settings
    from lakefork.spark.submit import quick_start, submit_command, submit_environment

    settings = load_settings()
    parse_params(arguments.job, arguments.params)
    connect(database_url(settings)).close()  # reports problems of the database before Spark starts
    environment = {**os.environ, **submit_environment(database_url(settings), settings.spark.master)}
    with quick_start() as conf:
        command = submit_command(settings, arguments.job, ["--params", arguments.params], conf)
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            result = _relay_output(process.stdout or (), arguments.job, sys.stderr if arguments.json else None)
    if arguments.json and process.returncode:
        raise JobFailedError(result.removeprefix(f"{arguments.job} failed: "), {})
    if arguments.json:
        print(result)
    return process.returncode


def _add_gc(commands: Any) -> None:
    parser = commands.add_parser("gc", help="show plans of retention and cleanup, tags and the last deletions")
    parser.set_defaults(run=gc)


def gc(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.gc import gc_text, list_deletions, read_gc

    with connect(database()) as connection:
        found = {**read_gc(connection), "deletions": list_deletions(connection).rows}
    return respond(arguments, gc_text(found), found)


def _add_audits(commands: Any) -> None:
    parser = commands.add_parser("audits", help="show results of audits, newest first")
    parser.add_argument("--run", dest="run_id", metavar="RUN_ID", help="only audits of one run")
    parser.add_argument("--failed", action="store_true", help="only failed")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a self-contained HTML page")
    parser.set_defaults(run=audits)


def audits(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.overview.audits import audits_page, audits_text, read_audits

    with connect(database()) as connection:
        audits = read_audits(connection, arguments.run_id, failed_only=arguments.failed)
    if arguments.html:
        arguments.html.write_text(audits_page(audits))
    return respond(arguments, audits_text(audits), [one.as_json() for one in audits])


def _add_undelete(commands: Any) -> None:
    parser = commands.add_parser("undelete", help="restore files that file_cleanup moved to the trash")
    parser.add_argument("--run", dest="run_id", required=True, metavar="RUN_ID", help="the run, as in system.deletions")
    parser.set_defaults(run=undelete)


def undelete(arguments: argparse.Namespace) -> int:
    from lakefork.catalog.connection import connect
    from lakefork.errors import StorageError
    from lakefork.removal.undelete import undelete
    from lakefork.settings import load_settings
    from lakefork.storage import StorageOptions

    storage = load_settings().storage
    with connect(database()) as connection:
        restored, problems = undelete(
            connection, arguments.run_id, StorageOptions(storage.s3_endpoint, storage.s3_region)
        )
    if problems:
        raise StorageError(
            f"{len(problems):,} file(s) could not be restored, {restored:,} were; the first: {problems[0]}"
        )
    text = f"{restored:,} file(s) were restored"
    return respond(arguments, text, {"run_id": arguments.run_id, "restored": restored})


def _relay_output(lines: Iterable[str], job: str, stream: TextIO | None = None) -> str:
    """Prints a driver's output, which Spark merges into one stream, with the failure on stderr and bars overwritten.

    Returns the line that matters: the failure, or else the last line, which is the result.
    """
    out = stream or sys.stdout
    drawn, result = False, ""
    for line in lines:
        is_bar = line.startswith(f"{job}: [") and out.isatty()
        start, end = "\r\033[K" if drawn else "", "" if is_bar else "\n"
        failed = line.startswith(f"{job} failed: ")
        print(f"{start}{line.rstrip()}", end=end, file=sys.stderr if failed else out, flush=True)
        drawn = is_bar
        if failed or not result.startswith(f"{job} failed: "):
            result = line.rstrip()
    return result
