"""What is expected of staged files: rules from the table's definition, and those that users wrote for their tables."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lakefork.errors import InvalidInputError
from lakefork.settings import PROJECT
from lakefork.storage.paths import path_part
from lakefork.tables import TableDefinition

DIRECTORY = PROJECT / "include" / "expectations"
MISSING = "versions that were not read"
UNWRITTEN = "rows that were not written"
SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class Rule:
    """A column of the metrics that must be 0 in every file, or equal another one."""

    metric: str
    about: str
    equals: str | None = None


def built_in_rules(metrics: tuple[str, ...]) -> list[Rule]:
    """For the metrics that a table's definition gives (spark/flush_task.py)."""
    about = {
        MISSING: "all versions that wait were read (if counters are wrong, lakefork.recount_hot_rows() counts anew)",
        UNWRITTEN: "the rows that were kept are in the files, each once",
        "wrong_types": "the columns have the types of the definition",
        "repeated_keys": "a key occurs once among the rows that were read at once",
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


def user_expectations(definition: TableDefinition, directory: Path = DIRECTORY) -> list[dict[str, Any]]:
    """What include/expectations/<namespace>/<table>.json (or .yaml) says, in the words of Great Expectations."""
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
