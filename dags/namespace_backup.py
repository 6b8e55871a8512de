"""
### namespace_backup: a namespace is kept elsewhere, verified, while everybody goes on working

Keeps all rows of a namespace, or of a whole catalog, hot and cold, with definitions, options and users, as they are at
one moment. Files are stored by what they hold: with `incremental` only those are copied that no earlier backup there
has, and still every backup restores by itself.

**When:** every night, if the setting `backup.to` says where to (`backup.schedule`, `backup.namespaces`,
`backup.keep`), and within seconds of `BACKUP DATABASE`. Such a run only starts others, one for each namespace.

**Params:** `to`: a directory below an allowed root, or `s3://bucket/prefix`; `catalog` and `namespace`: what; `keep`:
how many of the newest backups of it stay there; `verify` reads everything back afterwards; `dry_run` only says what
would be copied and removed.

**When it fails:** earlier backups are whole, and the next run there removes what this one left. *Is gone*, *changed*,
*are missing*: the backup that an incremental one would rely on is not whole; run one without `incremental`. *Is
damaged*: a file of the catalog itself is not what it was; look at the storage. *Cannot be written to*: look at the
place.
"""

from airflow.sdk import AssetOrTimeSchedule, dag

from lakefork.model.params import NamespaceBackupParams
from lakefork.orchestration.defaults import dag_defaults
from lakefork.orchestration.requests import backup_schedule, form_without_required, requests_of, run_requests

_SCHEDULE = AssetOrTimeSchedule(timetable=backup_schedule(), assets=[requests_of("namespace_backup")])
_DEFAULTS = dag_defaults(NamespaceBackupParams, __doc__, schedule=_SCHEDULE, max_active_runs=4, tags=("backup",))


@dag(**{**_DEFAULTS, "params": form_without_required(NamespaceBackupParams, "to")})
def namespace_backup() -> None:
    run_requests(NamespaceBackupParams, "to")


namespace_backup()
