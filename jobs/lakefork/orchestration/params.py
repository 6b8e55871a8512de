"""The trigger form of a DAG, derived from the parameters of its job."""

from typing import Any

from airflow.sdk import Param

from lakefork.model.params import JobParams


def trigger_form(params: type[JobParams]) -> dict[str, Param]:
    """Returns one Param per field, with the type, default, description and limits that the job checks."""
    schema = params.model_json_schema()
    required = set(schema.get("required", ()))
    return {
        name: Param(
            default=field.get("default"),
            title=name.replace("_", " "),
            description=field.get("description"),
            **_constraints(field, optional=name not in required),
        )
        for name, field in schema["properties"].items()
    }


def _constraints(field: dict[str, Any], *, optional: bool) -> dict[str, Any]:
    """Converts JSON schema for Airflow's form: `anyOf [X, null]` becomes X with null allowed."""
    choices = [choice for choice in field.get("anyOf", [field]) if choice.get("type") != "null"]
    rules = {key: value for key, value in choices[0].items() if key not in ("default", "title", "description")}
    rules |= {key: field[key] for key in ("pattern", "examples") if key in field}
    if optional and "anyOf" in field:
        rules["type"] = [rules["type"], "null"]
    return rules
