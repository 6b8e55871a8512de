"""What commands share: where the database is, how they answer and ask."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def wants_json(arguments: argparse.Namespace) -> bool:
    return getattr(arguments, "json", False) or getattr(arguments, "format", None) == "json"


def respond(arguments: argparse.Namespace, text: str, found: Any) -> int:
    """Prints the text for people, or the JSON for programs."""
    from lakefork.errors import printable

    lines = "\n".join(map(printable, text.split("\n")))
    print(json.dumps(found, default=str) if wants_json(arguments) else lines)
    return 0


def warn(about: str, points: list[str]) -> None:
    for point in points:
        print(f"warning: {about} {point}", file=sys.stderr)


def draw_bar(line: str) -> None:
    """Draws a progress bar over the previous one, at a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="\n" if "100%" in line else "", file=sys.stderr, flush=True)


def database() -> str:
    from lakefork.embedded.database import database_url
    from lakefork.settings import load_settings

    return database_url(load_settings())


def selected(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names}


def absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def confirmed(question: str, arguments: argparse.Namespace) -> bool:
    """Asks a question at a terminal; returns False where nobody can be asked."""
    can_ask = sys.stdin.isatty() and not arguments.json
    return can_ask and input(f"{question} [y/N] ").strip().lower() == "y"
