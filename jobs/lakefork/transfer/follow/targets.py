"""Opens the target of a followed copy."""

from lakefork.errors import InvalidInputError
from lakefork.transfer.follow.into_postgres import PostgresTarget
from lakefork.transfer.follow.run import Target
from lakefork.transfer.follow.source import FollowedSource
from lakefork.transfer.follow.state import Follow
from lakefork.transfer.postgres_copy.sessions import Endpoint, find_endpoint


def open_target(follow: Follow, source: FollowedSource) -> Target:
    copy = follow.copy
    if copy.target is None:
        raise InvalidInputError(f"copy {copy.copy_id} went into a catalog: following it is not implemented yet")
    found, identity = find_endpoint(copy.target)
    if str(identity) != copy.target_identity:
        raise InvalidInputError(f"target {copy.target!r} is another database or role than the one that was copied into")
    endpoint = Endpoint(found.name, found.dsn, source.endpoint.encoding)
    return PostgresTarget(endpoint, copy.copy_id, source.statement_to_add)
