"""Keeps whoever removes files out of directories that belong to another installation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakefork.storage import StorageOptions
from lakefork.storage.markers import belongs_to_others
from lakefork.storage.paths import normal_path, place

UNKNOWN_DEPTH = 3  # how far above a file of a table that is forgotten its root can be


@dataclass(frozen=True)
class RootGuard:
    """data_paths and locations: places below which, or at which, tables have their roots."""

    installation: str
    data_paths: frozenset[str]
    locations: frozenset[str]

    def refused(self, paths: Sequence[str], storage: StorageOptions) -> dict[str, str]:
        """Why some of the files must stay. Each root is looked at once."""
        reasons: dict[str, str | None] = {}
        found = {}
        for path in paths:
            for root in self._roots_of(normal_path(path)):
                if root not in reasons:
                    reasons[root] = self._reason(root, storage)
                if reason := reasons[root]:
                    found[path] = reason
        return found

    def _reason(self, root: str, storage: StorageOptions) -> str | None:
        try:
            is_theirs = belongs_to_others(root, self.installation, storage)
        except NotADirectoryError:  # then there is no file below it either
            return None
        except OSError as error:
            return f"whose {place(root)} is cannot be told: {str(error).splitlines()[0]}"
        return f"{place(root)} belongs to another installation of Lakefork" if is_theirs else None

    def _roots_of(self, path: str) -> list[str]:
        """The root of a file's table; where nobody knows it any more, what may be."""
        below: list[str] = []
        for above, name in _climb(path):
            if place(above) in self.locations:
                return [above]
            below.append(name)
            if place(above) in self.data_paths:
                return ["/".join([above, *reversed(below[-2:])])]
        return [above for above, _ in _climb(path)][1 : 1 + UNKNOWN_DEPTH]


def _climb(path: str) -> Iterator[tuple[str, str]]:
    """The directories above a path, the nearest first, each with the name below it."""
    while "/" in path.strip("/") and not path.endswith(":/"):
        path, _, name = path.rpartition("/")
        yield path, name
