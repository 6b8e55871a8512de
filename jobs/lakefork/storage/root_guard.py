"""Keeps cleanup out of directories that belong to another installation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakefork.storage import StorageOptions
from lakefork.storage.markers import belongs_to_others
from lakefork.storage.paths import normal_path, place

UNKNOWN_DEPTH = 3  # how far above a file the root of an expired table can be


@dataclass(frozen=True)
class RootGuard:
    """Checks the markers of roots. data_paths: tables have their roots below them; locations: at them."""

    installation: str
    data_paths: frozenset[str]
    locations: frozenset[str]

    def refused(self, paths: Sequence[str], storage: StorageOptions) -> dict[str, str]:
        """Returns the files that must stay, with the reason. Each root is checked once."""
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
        except NotADirectoryError:  # then no file is below it either
            return None
        except OSError as error:
            return f"the owner of {place(root)} is unknown: {str(error).splitlines()[0]}"
        return f"{place(root)} belongs to another installation of Lakefork" if is_theirs else None

    def _roots_of(self, path: str) -> list[str]:
        """Returns the root of a file's table, or the possible ones if the table has expired."""
        below: list[str] = []
        for above, name in _climb(path):
            if place(above) in self.locations:
                return [above]
            below.append(name)
            if place(above) in self.data_paths:
                return ["/".join([above, *reversed(below[-2:])])]
        return [above for above, _ in _climb(path)][1 : 1 + UNKNOWN_DEPTH]


def _climb(path: str) -> Iterator[tuple[str, str]]:
    """Returns the directories above a path, nearest first, each with the name below it."""
    while "/" in path.strip("/") and not path.endswith(":/"):
        path, _, name = path.rpartition("/")
        yield path, name
