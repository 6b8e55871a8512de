"""
### manifest_eviction: remove unused manifests from the cache

Manifests are cached in Postgres, so that readers need not ask the storage. Entries of dropped tables, entries that
have not been used for a while and the oldest beyond the limit are removed from the cache; the files stay. `due` checks
first, because usually there is nothing to do.

**When:** every `manifest_cache.eviction_interval_seconds` (rounded up to minutes).

**Params:** none; the settings `manifest_cache.*` limit the age and number of entries.

**When it fails:** nothing is lost, and the next run removes the entries. Check the connection to Postgres.
"""

from airflow.sdk import dag, task

from lakefork.model.params import ManifestEvictionParams
from lakefork.orchestration.defaults import DUE_CHECK_TIMEOUT, dag_defaults
from lakefork.orchestration.manifests import eviction_schedule, is_eviction_due
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(ManifestEvictionParams, __doc__, schedule=eviction_schedule(), tags=("upkeep",)))
def manifest_eviction() -> None:
    @task.short_circuit(execution_timeout=DUE_CHECK_TIMEOUT)
    def due() -> bool:
        return is_eviction_due()

    due() >> LakeforkJobOperator(task_id="manifest_eviction", job="manifest_eviction")  # type: ignore[call-arg]


manifest_eviction()
