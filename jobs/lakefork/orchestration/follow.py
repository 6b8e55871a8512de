"""The DAG postgres_follow: whether a copy is followed, and which Airflow connections its databases have."""

import contextlib

from airflow.sdk.exceptions import AirflowNotFoundException

from lakefork.catalog.connection import connect
from lakefork.orchestration.database import catalog_dsn, named_dsns
from lakefork.orchestration.spark_job import LakeforkJobOperator

_FOLLOWED = (
    "SELECT c.source, c.target FROM lakefork.follow f JOIN lakefork.copy c USING (copy_id) "
    "WHERE f.status = 'following' AND c.status = 'completed'"
)


def is_any_followed() -> bool:
    with connect(catalog_dsn()) as connection:
        return connection.execute(_FOLLOWED).fetchone() is not None


class FollowOperator(LakeforkJobOperator):
    """Runs postgres_follow with the connections of all copies that are followed."""

    def _named_dsns(self) -> dict[str, str]:
        with connect(catalog_dsn()) as connection:
            rows = connection.execute(_FOLLOWED).fetchall()
        found: dict[str, str] = {}
        for name in {name for row in rows for name in (row["source"], row["target"]) if name}:
            with contextlib.suppress(AirflowNotFoundException):  # the job names it, after the other copies
                found |= named_dsns([name])
        return found
