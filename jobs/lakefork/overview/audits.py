"""Results of audits: the text, JSON and page of `lakefork audits`."""

import html
from dataclasses import dataclass
from typing import Any

from lakefork.catalog.connection import Connection
from lakefork.overview.lake import list_audits

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
.bad { color: #d32f2f; font-weight: 600 }
"""


@dataclass(frozen=True)
class Audit:
    run_id: str
    catalog_name: str
    namespace: str | None
    table_name: str | None
    audited_at: Any
    success: bool
    files: int
    results: list[dict[str, Any]]
    quarantine: str | None

    @property
    def table(self) -> str:
        return f"{self.catalog_name}.{self.namespace or '?'}.{self.table_name or '(dropped)'}"

    @property
    def verdict(self) -> str:
        return "passed" if self.success else "FAILED"

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [one for one in self.results if not one["success"]]

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "audited_at": self.audited_at.isoformat()}


def read_audits(connection: Connection, run_id: str | None, *, failed_only: bool) -> list[Audit]:
    """Returns the last audits, newest first."""
    return [Audit(**row) for row in list_audits(connection, run_id, failed_only=failed_only).rows]


def audits_text(audits: list[Audit]) -> str:
    lines = [f"{'audited (UTC)':<22}{'result':<9}{'files':>7}  table"]
    for one in audits:
        lines.append(f"{one.audited_at:%Y-%m-%d %H:%M:%S}   {one.verdict:<9}{one.files:>7}  {one.table}")
        lines += [f"    {failure['about']}: {_failure_text(failure)}" for failure in one.failures]
        lines += [f"    files: {one.quarantine}"] if one.quarantine else []
    return "\n".join(lines if audits else ["no audits yet"])


def audits_page(audits: list[Audit]) -> str:
    """Returns a self-contained HTML page."""
    parts = "".join(_section(one) for one in audits) or "<p>no audits yet</p>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Lakefork audits</title><style>{STYLE}</style>'
        f"<h1>Audits of flushes</h1>{parts}</html>"
    )


def _section(audit: Audit) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(one['about'])}</td><td{'' if one['success'] else ' class=bad'}>"
        f"{'passed' if one['success'] else html.escape(_failure_text(one))}</td></tr>"
        for one in audit.results
    )
    where = f"<p>files: <code>{html.escape(audit.quarantine)}</code></p>" if audit.quarantine else ""
    return (
        f"<h2{'' if audit.success else ' class=bad'}>{html.escape(audit.table)}: {audit.verdict}</h2>"
        f"<p>{audit.audited_at:%Y-%m-%d %H:%M:%S} UTC, {audit.files:,} file(s), run {html.escape(audit.run_id)}</p>"
        f"{where}"
        f"<table><tr><th>expectation</th><th>result</th></tr>{rows}</table>"
    )


def _failure_text(failure: dict[str, Any]) -> str:
    """Describes a failure: the number of rows with examples, or the error."""
    if "error" in failure:
        return str(failure["error"])
    examples = f" (for example {', '.join(failure['examples'])})" if failure.get("examples") else ""
    observed = f"; observed {failure['observed']}" if "observed" in failure else ""
    return f"{failure['rows']} row(s) violate this{examples}{observed}"
