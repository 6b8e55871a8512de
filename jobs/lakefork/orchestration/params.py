"""The trigger form of a DAG, derived from the parameters of its job."""

from typing import Any

from airflow.sdk import Param

from lakefork.params import JobParams


def trigger_form(params: type[JobParams]) -> dict[str, Param]:
    """One Param per field: type, default, description and limits as the job itself checks them."""
    schema = params.model_json_schema()
    required = set(schema.get("required", ()))
    return {
        name: Param(
            default=field.get("default"),
            title=name.replace("_", " "),
            description=field.get("description"),
            **_rules(field, optional=name not in required),
        )
        for name, field in schema["properties"].items()
    }


def _rules(field: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """JSON schema as the form understands it: `anyOf [X, null]` becomes X with null allowed."""
    choices = [choice for choice in field.get("anyOf", [field]) if choice.get("type") != "null"]
    rules = {key: value for key, value in choices[0].items() if key not in ("default", "title", "description")}
    rules |= {key: field[key] for key in ("pattern", "examples") if key in field}
    if optional and "anyOf" in field:
        rules["type"] = [rules["type"], "null"]
    return rules
