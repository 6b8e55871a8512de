"""
### fork_provision: create forks for agents, tests or customers

A fork begins with everything that its parent has and shares every file; later changes in one are not visible in the
other. A run creates one fork, a list of forks, or as many as `count`, several in each transaction.

**When:** manually, or from another DAG; it has no schedule.

**Params:** `parent`, and either `names` or `name_prefix` with `count`. `data_path_template` is where their own files
go, for example `/lake/agents/{name}`. With `expires_after` the forks are dropped automatically after that time. `as_of`
forks an older snapshot.

**When it fails:** forks that were created stay. Clear the task to create the missing ones. *Already exists*: another
run created it; set `if_not_exists` to keep such forks. To drop the forks: `lakefork drop-catalog --prefix …`.
"""

from airflow.sdk import dag

from lakefork.model.params import ForkProvisionParams
from lakefork.orchestration.defaults import dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator


@dag(**dag_defaults(ForkProvisionParams, __doc__, schedule=None, max_active_runs=16))
def fork_provision() -> None:
    LakeforkJobOperator(task_id="fork_provision", job="fork_provision")


fork_provision()
