"""
### namespace_restore: a backup comes back, all of it or nothing

Copies the files of a backup into a catalog, checks each of them on the way, and makes all tables visible by one commit;
before that nobody sees anything. Rows, `_seq`, deleted rows, schema versions and options are what they were.

**When:** by hand, and within seconds of `RESTORE DATABASE`; it has no schedule.

**Params:** `from`: a place of backups, whose newest one counts, or `PLACE/backups/ID`; `namespace`: under which name;
`replace` a namespace of that name; `by_reference` shares files of this installation with another catalog instead of
copying them.

**When it fails:** nothing was restored, and the next restore removes what was staged. *Already exists*:
use another name, or `replace`. *Is damaged*, *is missing*: the backup is not whole; take another one
(`lakefork backup verify`).
"""

from airflow.sdk import dag

from lakefork.model.params import NamespaceRestoreParams
from lakefork.orchestration.defaults import dag_defaults
from lakefork.orchestration.requests import form_without_required, requests_of, run_requests

_DEFAULTS = dag_defaults(
    NamespaceRestoreParams, __doc__, schedule=[requests_of("namespace_restore")], max_active_runs=4, tags=("backup",)
)


@dag(**{**_DEFAULTS, "params": form_without_required(NamespaceRestoreParams, "from")})
def namespace_restore() -> None:
    run_requests(NamespaceRestoreParams, "from")


namespace_restore()
