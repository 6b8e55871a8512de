"""The newest versions of keys: hot ones as they were fetched, and those that only batches have."""

from collections.abc import Sequence
from typing import Any

from lakefork.hot.points import PARAMETER_OF_OWNER, PARAMETER_OF_USER, fixed, key_parameter
from lakefork.model.tables import Column
from lakefork.read.points import BatchLookup
from lakefork.read.tables import FoundTable
from lakefork.sql.points.keys import Key
from lakefork.sql.resources import Resources
from lakefork.sql.results import Rows
from lakefork.sql.session import Session

Version = tuple[Any, ...]  # _seq, _deleted and columns


def parameters_of(session: Session, keys: Sequence[Key]) -> dict[str, Any]:
    """Returns the parameters of hot.points.newest_by_key."""
    given: dict[str, Any] = {PARAMETER_OF_USER: session.user or None, PARAMETER_OF_OWNER: session.user}
    for place, key in enumerate(keys):
        for number, value in enumerate(key):
            given[key_parameter(place, number)] = fixed(value)
    return given


class Finder:
    """Completes what newest_by_key found."""

    def __init__(self, resources: Resources) -> None:
        self._manifests = resources.manifests
        self._cold = BatchLookup(resources.readers.transaction, resources.settings.batch_cache_mb << 20)

    def newest(
        self,
        found: FoundTable,
        columns: Sequence[Column],
        owner: str | None,
        keys: Sequence[Key],
        rows: Sequence[tuple[Any, ...]],
    ) -> dict[int, Version] | None:
        """Returns the newest versions by place of the key, deleted ones too.

        None: what was planned no longer holds, or batches were published since.
        A version that is hot is newer than those in batches: it leaves the hot store together with all older ones. But
        each of several hot tables is flushed for itself.
        """
        is_current, _, files, *_ = rows[0]
        if not is_current:
            return None
        newest = {row[3]: row[4:] for row in rows if row[4] is not None}
        if not files[1]:
            return newest
        self._manifests.touch(*found.definition.ref, owner or "")
        for place, key in enumerate(keys):
            if place in newest and len(found.hot) == 1:
                continue
            row = self._cold.newest(found.definition, owner, tuple(files), key, columns)
            if row is None:
                return None
            if row.num_rows and (place not in newest or row.column(0)[0].as_py() > newest[place][0]):
                newest[place] = Rows("", row).rows[0]
        return newest
