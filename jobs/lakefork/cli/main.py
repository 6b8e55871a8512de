"""The lakefork command. Heavy imports stay inside the commands, so that --help is fast."""

import argparse
import json
import logging
import sys
import tempfile
import traceback
from typing import NoReturn

from lakefork import __version__
from lakefork.cli import api, backups, catalogs, clients, copy, follow, installation, jobs, rows
from lakefork.cli.answers import wants_json
from lakefork.errors import LakeforkError, StorageError, UnexpectedError, os_reason


def main() -> NoReturn:
    arguments = _parser().parse_args()
    logging.getLogger("lakefork").addHandler(logging.NullHandler())  # the answer of the command reports it
    try:
        code = arguments.run(arguments)
    except LakeforkError as error:
        code = _fail(arguments, error.code, str(error))
    except KeyboardInterrupt:
        print("lakefork: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        code = 141
    except Exception as error:
        translated = _as_one_sentence(error)
        code = _fail(arguments, translated.code, str(translated))
    sys.exit(code or 0)


def _as_one_sentence(error: Exception) -> LakeforkError:
    """Translates any error to one sentence; the traceback of an unexpected one goes to a file."""
    from lakefork.database_errors import DRIVER_ERRORS, database_error

    if isinstance(error, DRIVER_ERRORS):
        return database_error(error)
    if isinstance(error, OSError):
        return StorageError(f"a file cannot be read or written: {os_reason(error)}")
    with tempfile.NamedTemporaryFile("w", prefix="lakefork-", suffix=".log", delete=False) as log:
        traceback.print_exception(error, file=log)
    return UnexpectedError(f"internal error: please report it with {log.name}, which has the traceback")


def _fail(arguments: argparse.Namespace, code: str, message: str) -> int:
    if wants_json(arguments):
        print(json.dumps({"status": "error", "results": [], "error": {"code": code, "message": message}}))
    else:
        print(f"lakefork: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lakefork", description="A lakehouse for very many tenants; `make help` starts the whole stack."
    )
    parser.add_argument("--version", action="version", version=f"lakefork {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    for room in (installation, rows, jobs, catalogs, api, copy, follow, backups, clients):
        room.add_parsers(commands)
    commands.choices["completion"].set_defaults(parser=parser)

    for name, command in commands.choices.items():
        if name not in ("completion", "token"):  # whose output is a script, and whose actions have the option
            command.add_argument("--json", action="store_true", help="print JSON, also for errors")
    return parser


if __name__ == "__main__":
    main()
