"""Which tables of a copy into the lake can be followed."""

from collections.abc import Sequence

from lakefork.errors import InvalidInputError
from lakefork.transfer.postgres_copy.lake_types import LakeTable


def require_lake_keys(tables: Sequence[LakeTable]) -> None:
    """Of a copy that will be followed: rows are found by the source's primary key, whoever they belong to."""
    for table in tables:
        if table.per_user:
            raise InvalidInputError(
                f"{table.namespace}.{table.name} becomes a USER table, and those cannot be followed"
            )
        if table.has_generated_key:
            raise InvalidInputError(
                f"{table.namespace}.{table.name} has no primary key that the lake can have, and cannot be followed: "
                "exclude it"
            )
