"""Interim."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from lakefork.storage import StorageOptions, open_path


@dataclass(frozen=True)
class Removed:
    path: str
    outcome: str
    trash_path: str | None = None


def remove_many(paths: Sequence[str], options: StorageOptions) -> list[Removed]:
    return [Removed(path, _remove(path, options)) for path in paths]


def _remove(path: str, options: StorageOptions) -> str:
    try:
        if path.startswith("s3://"):
            filesystem, inner = open_path(path, options)
            filesystem.delete_file(inner)
        else:
            os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return str(error).splitlines()[0]
    return "removed"


def move_to_trash(paths: Sequence[str], roots: Sequence[str], date: str, options: StorageOptions) -> list[Removed]:
    raise NotImplementedError
