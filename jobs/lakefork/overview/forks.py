"""The tree of forks: the text of `lakefork forks`, and single levels for the page."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from lakefork.catalog.catalogs import find_catalog
from lakefork.catalog.connection import Connection
from lakefork.overview.lake import PAGE_SIZE, Page, make_page
from lakefork.overview.status import readable_bytes
from lakefork.queries import load

_SQL = load(__package__)


def list_children(
    connection: Connection,
    parent: str | None,
    after: str | None = None,
    limit: int = PAGE_SIZE,
    *,
    search: str | None = None,
) -> Page:
    """Returns the forks of a catalog, the roots of the tree, or all matches of a search, with own and shared bytes."""
    parent_id = None if parent is None else find_catalog(connection, parent).catalog_id
    found = connection.execute(
        _SQL["fork_children"], {"parent_id": parent_id, "after": after, "search": search or None, "limit": limit + 1}
    ).fetchall()
    return make_page(found, limit, "name")


def list_forks(connection: Connection, below: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """Returns the tree, parents before their forks; below: only this catalog and its descendants."""
    if below is not None:
        find_catalog(connection, below)
    return connection.execute(_SQL["fork_tree"], {"below": below, "limit": limit}).fetchall()


def reclaimable(connection: Connection, name: str, limit: int | None = None) -> list[dict[str, Any]]:
    """Returns what dropping a catalog would free, and which catalogs keep the rest."""
    find_catalog(connection, name)
    return connection.execute("SELECT * FROM lakefork.reclaim(%s) LIMIT %s", (name, limit)).fetchall()


def forks_text(forks: Sequence[Mapping[str, Any]]) -> str:
    """Renders the tree, one line per catalog, forks below their parents."""
    lines = [
        f"{'catalog':<36}{'created (UTC)':<18}{'snapshot':>12}{'own rows':>14}{'own':>10}"
        f"{'shared rows':>14}{'shared':>10}{'hot rows':>12}  expires"
    ]
    for fork in forks:
        name = f"{'  ' * fork['depth']}{fork['name']}"
        when = f"{fork['created_at'].astimezone(datetime.UTC):%Y-%m-%d %H:%M}" if fork["created_at"] else ""
        expires = f"{fork['expires_at'].astimezone(datetime.UTC):%Y-%m-%d %H:%M}" if fork["expires_at"] else ""
        own, shared = readable_bytes(fork["own_bytes"]), readable_bytes(fork["shared_bytes"])
        lines.append(
            f"{name:<36}{when:<18}{fork['forked_at_snapshot'] or '':>12}{fork['own_rows']:>14,}{own:>10}"
            f"{fork['shared_rows']:>14,}{shared:>10}{fork['hot']:>12,}  {expires}".rstrip()
        )
    return "\n".join(lines)


def reclaim_text(found: Sequence[Mapping[str, Any]]) -> str:
    freed = [row for row in found if row["pinned_by"] is None]
    files, size = (freed[0]["files"], freed[0]["bytes"]) if freed else (0, 0)
    lines = [f"dropping it would free {files:,} file(s), {readable_bytes(size)}, once its snapshots have expired"]
    lines += [
        f"kept by {row['pinned_by']}: {row['files']:,} file(s), {readable_bytes(row['bytes'])}"
        for row in found
        if row["pinned_by"] is not None
    ]
    return "\n".join(lines)
