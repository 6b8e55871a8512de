"""`make bench [AREA=…]`: measures against peers in the same run, prints ratios, writes bench.json."""

import json
import sys
import time
from pathlib import Path

from tests.benchmarks import (
    api,
    backup,
    catalog_size,
    cold,
    commits,
    copy,
    flush,
    flush_events,
    follow,
    forks,
    forks_client,
    live,
    manifests,
    orphans,
    overview,
    retention,
    spark_read,
    sql,
    start_up,
    statements,
)
from tests.benchmarks.report import Figure

AREAS = {
    "commits": commits.measure,
    "copy": copy.measure,
    "catalog_size": catalog_size.measure,
    "sql": sql.measure,
    "statements": statements.measure,
    "flush": flush.measure,
    "flush_events": flush_events.measure,
    "follow": follow.measure,
    "cold": cold.measure,
    "spark_read": spark_read.measure,
    "manifests": manifests.measure,
    "forks": forks.measure,
    "retention": retention.measure,
    "orphans": orphans.measure,
    "backup": backup.measure,
    "client": forks_client.measure,
    "overview": overview.measure,
    "start_up": start_up.measure,
    "api": api.measure,
    "live": live.measure,
}
OUTPUT = Path(__file__).parents[2] / "bench.json"


def main() -> int:
    asked = sys.argv[1:] or list(AREAS)
    if unknown := [area for area in asked if area not in AREAS]:
        print(f"there is no area {unknown[0]!r}; areas: {', '.join(AREAS)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for area in asked:
        started = time.monotonic()
        print(f"--- {area}", flush=True)
        figures += AREAS[area]()
        print(f"    ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"\n{'figure':<72}{'measured':>16}{'wanted':>14}")
    for figure in figures:
        print(figure)
    OUTPUT.write_text(json.dumps([vars(figure) for figure in figures], indent=1))
    missed = [figure for figure in figures if figure.met is False]
    print(f"\n{len(figures)} figures, {len(missed)} missed; written to {OUTPUT.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
