"""`lakefork follow`: apply changes of a copied Postgres, look at the lag, cut over, stop."""

import argparse
import json
from typing import Any

from lakefork.cli import jobs
from lakefork.cli.answers import database, respond

ACTIONS = ("run", "status", "cutover", "stop")


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("follow", help="follow a Postgres that was copied with --follow (docs/copy.md)")
    parser.add_argument(
        "action", choices=ACTIONS,
        help="run: apply what the source has committed; status: how far behind; cutover: the last changes, sequences, "
        "comparison, then the slot goes; stop: drop the slot",
    )  # fmt: skip
    parser.add_argument("copy_id", nargs="?", metavar="COPY_ID", help="which copy; run and status without it: all")
    parser.add_argument("--until", metavar="LSN", help="run: how far (default: what is committed when it begins)")
    parser.add_argument("--max-seconds", type=float, metavar="N", help="run: how long")
    parser.add_argument("--force", action="store_true", help="cutover: also if the source still writes or differs")
    parser.set_defaults(run=follow)


def follow(arguments: argparse.Namespace) -> int:
    if arguments.action == "run":
        given = {name: getattr(arguments, name) for name in ("copy_id", "until", "max_seconds")}
        arguments.job = "postgres_follow"
        arguments.params = json.dumps({name: value for name, value in given.items() if value is not None})
        return jobs.run(arguments)
    from lakefork.errors import InvalidInputError
    from lakefork.settings import load_settings
    from lakefork.transfer.follow import commands
    from lakefork.transfer.follow.targets import open_target

    if arguments.action == "status":
        found = commands.statuses(database(), arguments.copy_id)
        return respond(arguments, "\n".join(map(commands.status_line, found)) or "no copy is followed", found)
    if not arguments.copy_id:
        raise InvalidInputError(
            f"lakefork follow {arguments.action} needs a COPY_ID; `lakefork follow status` lists them"
        )
    if arguments.action == "stop":
        text = commands.stop(database(), load_settings(), arguments.copy_id)
        return respond(arguments, text, {"copy_id": arguments.copy_id, "status": "stopped"})
    done = commands.cut_over(database(), load_settings(), arguments.copy_id, open_target, force=arguments.force)
    text = (
        f"copy {done['copy_id']} is cut over at {done['position']}: {done['sequences']} sequence(s) are set, slot and "
        "publication are dropped"
    )
    return respond(arguments, text, done)
