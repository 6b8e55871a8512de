"""
### postgres_follow: changes of a copied Postgres reach its copy

Copies that were made with `follow` have a replication slot on their source. Each run applies what the source has
committed since the one before, in commit order, each transaction as a whole and once: the position is committed
with the rows.

**When:** every five minutes, if there is a followed copy, until somebody runs `lakefork follow cutover` or
`lakefork follow stop`.

**Params:** `copy_id`: only this copy; `until`: an LSN of the source, or `current`; `max_seconds`: how long.

**When it fails:** what was applied stays, and the next run goes on. *Is not on target*, *is refused by target*:
somebody has changed the target; the message names the row. *Has added column*: run the statement in the message.
*Copy required*: the slot is gone, and with it changes that nobody has; `lakefork follow stop`, then begin a new copy.
"""

from airflow.sdk import dag, task

from lakefork.model.params import PostgresFollowParams
from lakefork.orchestration.defaults import DUE_CHECK_TIMEOUT, cron_schedule, dag_defaults
from lakefork.orchestration.follow import FollowOperator, is_any_followed


@dag(**dag_defaults(PostgresFollowParams, __doc__, schedule=cron_schedule("*/5 * * * *")))
def postgres_follow() -> None:
    @task.short_circuit(execution_timeout=DUE_CHECK_TIMEOUT)
    def due() -> bool:
        return is_any_followed()

    due() >> FollowOperator(task_id="postgres_follow", job="postgres_follow")  # type: ignore[call-arg]


postgres_follow()
