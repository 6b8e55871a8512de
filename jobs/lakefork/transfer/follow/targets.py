"""Opens the target of a followed copy: another Postgres, or a catalog."""

from lakefork.errors import InvalidInputError
from lakefork.spark.job import JobContext
from lakefork.transfer.follow.into_postgres import PostgresTarget
from lakefork.transfer.follow.run import Target
from lakefork.transfer.follow.source import FollowedSource
from lakefork.transfer.follow.state import Follow
from lakefork.transfer.postgres_copy.sessions import find_endpoint, target_endpoint


def open_target(context: JobContext, follow: Follow, source: FollowedSource) -> Target:
    copy = follow.copy
    if copy.target is None:
        from lakefork.transfer.follow.into_lake import LakeTarget

        return LakeTarget(context, follow)
    found, identity = find_endpoint(copy.target)
    if str(identity) != copy.target_identity:
        raise InvalidInputError(f"target {copy.target!r} is another database or role than the one that was copied into")
    endpoint = target_endpoint(source.endpoint, source.identity, found, identity)
    return PostgresTarget(endpoint, copy.copy_id, source.statement_to_add)
