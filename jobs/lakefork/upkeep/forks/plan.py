"""Plans fork_provision: which forks to create, and how many per transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.errors import AlreadyExistsError

ROWS_AT_ONCE = 50_000  # copied in a transaction of a second or less
MAX_PER_TRANSACTION = 50


@dataclass(frozen=True)
class ProvisionPlan:
    missing: tuple[str, ...]
    existing: tuple[str, ...]


def plan_provision(
    names: Sequence[str], taken: Mapping[str, Mapping[str, Any]], parent_id: int, run_id: str, *, if_not_exists: bool
) -> ProvisionPlan:
    """Plans the forks. taken: for existing names, the parent and the run that created them; own ones count as done."""
    for name in names:
        found = taken.get(name)
        if found is None:
            continue
        if found["parent_id"] != parent_id:
            raise AlreadyExistsError(f"catalog {name!r} already exists and is not a fork of this parent")
        if not if_not_exists and found["run_id"] != run_id:
            raise AlreadyExistsError(f"fork {name!r} already exists: drop it, or set if_not_exists to keep such forks")
    return ProvisionPlan(
        tuple(name for name in names if name not in taken), tuple(name for name in names if name in taken)
    )


def chunks_of(names: Sequence[str], rows_per_fork: int) -> list[tuple[str, ...]]:
    size = max(1, min(MAX_PER_TRANSACTION, ROWS_AT_ONCE // max(1, rows_per_fork)))
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]
