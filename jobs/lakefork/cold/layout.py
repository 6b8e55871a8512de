"""Paths of batches: <table>/user_<id>/batch-<N>.parquet, <table>/shared/batch-<N>.parquet, or below LOCATION."""

import re

from lakefork.model.tables import TableDefinition
from lakefork.storage.paths import path_part

USER_VARIABLE = "${user_id}"
_BATCH_NAME = re.compile(r"batch-(\d{1,18})\.parquet", re.ASCII)


def batch_directory(definition: TableDefinition, user_id: str | None) -> str:
    """Returns the directory of a user's batches, or of a shared table's."""
    location = definition.tags.get("location")
    if location and user_id is not None and USER_VARIABLE in location:
        return location.replace(USER_VARIABLE, path_part(user_id))
    return f"{location or definition.path}/{owner_part(user_id)}"


def owner_part(user_id: str | None) -> str:
    """The directory of a user's batches below the table's; None: of a shared table."""
    return "shared" if user_id is None else f"user_{path_part(user_id)}"


def batch_name(number: int) -> str:
    return f"batch-{number}.parquet"


def batch_number(name: str) -> int:
    """Returns the number in a batch's name; -1 if it is not a batch."""
    found = _BATCH_NAME.fullmatch(name)
    return int(found[1]) if found else -1


def below_table(definition: TableDefinition, path: str) -> str:
    """Returns a path as the catalog records it: relative to the table's."""
    return path.removeprefix(f"{definition.path}/")
