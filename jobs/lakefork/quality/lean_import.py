"""Imports Great Expectations without the libraries that it needs only for charts, statistics and databases."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

# Loaded at first use.
LAZY = {"altair", "scipy.stats"}
# Optional for Great Expectations.
ABSENT = ("sqlalchemy", "pyspark.ml", "pyspark.sql.connect")


class _LazyFinder:
    """Finds modules that are executed at the first use of an attribute."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in LAZY:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) and spec.loader:
                spec.loader = importlib.util.LazyLoader(spec.loader)
                return spec
        return None


def start_import() -> None:
    """Starts the import in a thread; import_lean waits for it."""
    threading.Thread(target=_import_beside, name="import of Great Expectations", daemon=True).start()


def _import_beside() -> None:
    """Imports with a short switch interval, because the main thread starts Spark with very many short calls."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 50)
    try:
        import_lean()
    finally:
        sys.setswitchinterval(usual)


def import_lean() -> None:
    with _importing:
        if "great_expectations" not in sys.modules:
            _import()


_importing = threading.Lock()


def _import() -> None:
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        with _absent(ABSENT):
            importlib.import_module("great_expectations")
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _absent(names: Sequence[str]) -> Iterator[None]:
    """Makes modules that are not imported yet unavailable inside the block."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
