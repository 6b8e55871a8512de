"""Finds files other than Python: at the top of a checkout, or inside an installed package."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def _library() -> Path:
    """The directory of this package; Spark hands the package to its processes as a zip."""
    here = Path(__file__).resolve().parent
    if not here.is_dir():
        try:
            return Path(str(distribution("lakefork").locate_file("lakefork")))
        except PackageNotFoundError:
            pass  # an executor on another machine, which needs none of these files
    return here


_PACKAGED = _library() / "_resources"  # setup.py puts them there when it builds a wheel
IS_CHECKOUT = not _PACKAGED.is_dir()
_ROOT = _library().parents[1] if IS_CHECKOUT else _PACKAGED


def resource(path: str) -> Path:
    """The file or directory that has this path in the repository, such as schema/postgresql.sql."""
    return _ROOT / path
