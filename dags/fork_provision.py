"""
### fork_provision: a catalog of their own for many agents, tests or customers

A fork begins with everything that its parent has and shares every file; from then on nothing that one does is seen by
the other. This run makes one, a list, or as many as you like, some in each transaction.

**When:** by hand, or from another DAG; it has no schedule.

**Params:** `parent`, and either `names` or `name_prefix` with `count`. `data_path_template` says where their files go,
for example `/lake/agents/{name}`. With `expires_after` the forks are dropped by themselves after that time. `as_of`
forks an older snapshot.

**When it fails:** forks that were made stay. Clear the task, and it makes those that are missing. *There is a fork
already*: somebody else made it; set `if_not_exists` to leave such forks as they are. Not wanted any more:
`lakefork drop-catalog --prefix …`.
"""

from airflow.sdk import dag

from lakefork.orchestration.defaults import dag_defaults
from lakefork.orchestration.spark_job import LakeforkJobOperator
from lakefork.params import ForkProvisionParams


@dag(**dag_defaults(ForkProvisionParams, __doc__, schedule=None, max_active_runs=16))
def fork_provision() -> None:
    LakeforkJobOperator(task_id="fork_provision", job="fork_provision")


fork_provision()
