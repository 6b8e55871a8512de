"""Which forks a run of fork_provision makes, and how many in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefork.errors import AlreadyExistsError

ROWS_AT_ONCE = 50_000  # so many rows are copied in a transaction of a second or less
MOST_AT_ONCE = 50


@dataclass(frozen=True)
class ProvisionPlan:
    missing: tuple[str, ...]
    existing: tuple[str, ...]


def plan_provision(
    names: Sequence[str], taken: Mapping[str, Mapping[str, Any]], parent_id: int, run_id: str, *, if_not_exists: bool
) -> ProvisionPlan:
    """taken: of the names that are, the parent and the run that made them. What this run made before counts as done."""
    for name in names:
        found = taken.get(name)
        if found is None:
            continue
        if found["parent_id"] != parent_id:
            raise AlreadyExistsError(f"there is a catalog {name!r} already, and it is not a fork of this parent")
        if not if_not_exists and found["run_id"] != run_id:
            raise AlreadyExistsError(
                f"there is a fork {name!r} already: drop it, or set if_not_exists to leave such forks as they are"
            )
    return ProvisionPlan(
        tuple(name for name in names if name not in taken), tuple(name for name in names if name in taken)
    )


def chunks_of(names: Sequence[str], rows_per_fork: int) -> list[tuple[str, ...]]:
    size = max(1, min(MOST_AT_ONCE, ROWS_AT_ONCE // max(1, rows_per_fork)))
    return [tuple(names[start : start + size]) for start in range(0, len(names), size)]
