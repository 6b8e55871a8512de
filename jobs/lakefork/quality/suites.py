"""Expectations on staged files: rules from the table's definition, and those that users wrote for their tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lakefork.errors import InvalidInputError
from lakefork.model.tables import TableDefinition
from lakefork.resources import IS_CHECKOUT, resource
from lakefork.settings import Settings
from lakefork.storage.paths import path_part

MISSING = "versions that were not read"
UNWRITTEN = "rows that were not written"
SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class Rule:
    """A column of the metrics that must be 0 in every file, or equal to another column."""

    metric: str
    about: str
    equals: str | None = None


def built_in_rules(metrics: tuple[str, ...]) -> list[Rule]:
    """Returns the rules for the metrics that a table's definition implies (upkeep/flush/task.py)."""
    about = {
        MISSING: "all waiting versions were read (lakefork.recount_hot_rows() corrects wrong counters)",
        UNWRITTEN: "the files hold each row that was kept exactly once",
        "wrong_types": "the columns have the types of the definition",
        "repeated_keys": "keys are unique among the rows that were read together",
        "repeated_seqs": "versions of a key have increasing _seq",
    }
    rules = []
    for metric in metrics:
        if metric == "rows_written":
            rules.append(Rule(metric, "the file holds the rows that were kept", "rows_kept"))
        elif metric.startswith("nulls in "):
            rules.append(Rule(metric, f"column {metric.removeprefix('nulls in ')} is not NULL"))
        elif metric in about:
            rules.append(Rule(metric, about[metric]))
    return rules


def expectations_directory(settings: Settings) -> Path:
    """Returns where users put the expectations for their tables."""
    if settings.flush.expectations:
        return Path(settings.flush.expectations)
    return resource("include/expectations") if IS_CHECKOUT else settings.home / "expectations"


def user_expectations(definition: TableDefinition, directory: Path) -> list[dict[str, Any]]:
    """Returns the expectations of include/expectations/<namespace>/<table>.json (or .yaml)."""
    base = directory / path_part(definition.namespace) / path_part(definition.name)
    found = [path for suffix in SUFFIXES if (path := base.with_name(base.name + suffix)).is_file()]
    if not found:
        return []
    try:
        content = yaml.safe_load(found[0].read_text())  # JSON is YAML
        expectations = content["expectations"] if isinstance(content, dict) else content
        return [{"type": one["type"], "kwargs": dict(one.get("kwargs", {}))} for one in expectations]
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise InvalidInputError(
            f"{found[0]} is not a list of expectations, each with a type and kwargs: {str(error).splitlines()[0]}"
        ) from error
