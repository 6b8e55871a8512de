"""
### manifest_eviction: cached manifests that nobody uses go

Manifests are cached in Postgres, so that readers need not ask the storage. Entries of dropped tables, those that nobody
used for a while and the oldest beyond the limit are removed from the cache; the files stay. `due` looks first: mostly
there is nothing to do.

**When:** every `manifest_cache.eviction_interval_seconds` (rounded up to minutes).

**Params:** none; the settings `manifest_cache.*` say how long entries are kept, and how many.

**When it fails:** nothing is lost, the next run removes them. Look at the connection to Postgres.
"""

from airflow.sdk import dag, task

from lakefork.orchestration.defaults import LOOKS_FOR, dag_defaults
from lakefork.orchestration.manifests import eviction_schedule, is_eviction_due
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import ManifestEvictionParams


@dag(**dag_defaults(ManifestEvictionParams, __doc__, schedule=eviction_schedule(), tags=("upkeep",)))
def manifest_eviction() -> None:
    @task.short_circuit(execution_timeout=LOOKS_FOR)
    def due() -> bool:
        return is_eviction_due()

    due() >> LakeforkJobOperator(task_id="manifest_eviction", job="manifest_eviction")  # type: ignore[call-arg]


manifest_eviction()
