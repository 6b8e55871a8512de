"""Helpers for tests of following: a copied source, whose changes are applied in the test's process."""

import json
from typing import Any

from lakefork.model.params import PostgresFollowParams, parse_params
from lakefork.transfer.follow.commands import cut_over, stop
from lakefork.transfer.follow.run import run_postgres_follow
from lakefork.transfer.follow.targets import open_target
from support.copy_lab import CopyLab


class FollowLab(CopyLab):
    """A copy lab whose copy is called one."""

    def begin(self, **params: Any) -> None:
        self.copy(copy_id="one", follow=True, **params)

    def follow(self, **params: Any) -> dict[str, Any]:
        found = parse_params("postgres_follow", json.dumps({"copy_id": "one", **params}))
        assert isinstance(found, PostgresFollowParams)
        with self.context() as context:
            return run_postgres_follow(context, found, open_target)

    def cut_over(self, *, force: bool = False) -> dict[str, Any]:
        return cut_over(self.dsn, self.settings, "one", open_target, force=force)

    def stop(self) -> str:
        return stop(self.dsn, self.settings, "one")

    def differences(self) -> list[str]:
        """Of all that was copied, as the source is now."""
        from lakefork.transfer.postgres_copy.commands import compare_now

        return compare_now(self.dsn, "one", of_now=True)

    def follow_row(self, columns: str) -> tuple[Any, ...]:
        (row,) = self.catalog(f"SELECT {columns} FROM lakefork.follow")
        return row


class LakeFollowLab(FollowLab):
    """The same with a catalog as target."""

    def begin(self, **params: Any) -> None:
        self.into_lake(copy_id="one", follow=True, **params)
