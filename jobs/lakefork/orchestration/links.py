"""Links from a task in Airflow's UI to the Lakefork page."""

import json
from typing import Any
from urllib.parse import quote

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink


def page_address(*parts: str, **query: str) -> str:
    """Returns an address of the page; each part is encoded."""
    base = conf.get("api", "base_url", fallback="/").rstrip("/")
    asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    return f"{base}/lakefork/#/{'/'.join(quote(part, safe='') for part in parts)}{'?' if asked else ''}{asked}"


class LakeLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow is not typed for us
    """Links to the run's table, its catalog or the overview."""

    name = "Lakefork"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - the signature is Airflow's
        params = json.loads(operator.application_args[-1])
        catalog = params.get("catalog") or params.get("parent")
        table = [params.get(name) for name in ("namespace", "table")]
        if catalog and all(table):
            return page_address("table", catalog, *table)
        return page_address("catalog", catalog) if catalog else page_address()


class AuditsLink(BaseOperatorLink):  # type: ignore[misc]
    """Links to the results of this flush's audit."""

    name = "Audits"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002
        return page_address("audits", run=ti_key.run_id)
