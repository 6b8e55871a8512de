"""Retention and cleanup: plans, files scheduled for deletion, the ledger and pinned snapshots."""

from lakefork.catalog.connection import Connection
from lakefork.overview.lake import PAGE_SIZE, Page, Row, make_page
from lakefork.overview.status import readable_bytes, utc
from lakefork.queries import load

_SQL = load(__package__)
PLANS_SHOWN = 10


def read_gc(connection: Connection) -> Row:
    return {
        "totals": read_cleanup_totals(connection),
        "plans": connection.execute(_SQL["plans"], {"limit": PLANS_SHOWN}).fetchall(),
        "pinned": connection.execute(_SQL["pinned"], {"limit": PAGE_SIZE}).fetchall(),
    }


def read_cleanup_totals(connection: Connection) -> Row:
    return connection.execute(_SQL["cleanup_totals"]).fetchall()[0]


def list_deletions(connection: Connection, before: int | None = None, limit: int = PAGE_SIZE) -> Page:
    found = connection.execute(_SQL["deletions"], {"before": before, "limit": limit + 1}).fetchall()
    return make_page(found, limit, "deletion_id")


def gc_text(found: Row) -> str:
    """Renders `lakefork gc`: totals, plans, pins and the end of the ledger."""
    totals = found["totals"]
    removed = f"{totals['removed_files']:,} file(s), {readable_bytes(totals['removed_bytes'])} have been deleted so far"
    waiting = f"{totals['files']:,} file(s), {readable_bytes(totals['bytes'])} are scheduled for deletion"
    plans = [f"{'plan':<36}{'created (UTC)':<22}{'carried out (UTC)':<22}content", *map(_plan_line, found["plans"])]
    pins = ["pinned snapshots", *map(_pin_line, found["pinned"])]
    ledger = [f"{'decided (UTC)':<22}{'outcome':<12}{'bytes':>10}  file", *map(_deletion_line, found["deletions"])]
    parts = [[waiting, removed], plans, pins, ledger]
    return "\n\n".join("\n".join(lines if len(lines) > 1 else [*lines, "(none)"]) for lines in parts)


def _plan_line(row: Row) -> str:
    done = utc(row["done_at"]) or ("started" if row["begun_at"] else "not yet")
    given_up = f"{row['snapshots']:,} snapshot(s) of {row['catalogs']:,} catalog(s), " if row["catalogs"] else ""
    freed = f", {row['freed_files']:,} freed ({readable_bytes(row['freed_bytes'] or 0)})" if row["freed_files"] else ""
    what = f"{row['job']}: {given_up}{row['files'] or 0:,} file(s){freed}"
    return f"{row['plan_id']:<36}{utc(row['created_at']):<22}{done:<22}{what}"


def _pin_line(row: Row) -> str:
    by = f" by {row['tagged_by']}" if row["tagged_by"] else ""
    return f"{row['catalog']} snapshot {row['snapshot_id']} as {row['name']}, {utc(row['tagged_at'])}{by}"


def _deletion_line(row: Row) -> str:
    outcome = "restored" if row["restored_at"] else row["outcome"] or "decided"
    return f"{utc(row['decided_at']):<22}{outcome:<12}{readable_bytes(row['bytes'] or 0):>10}  {row['path']}"
