"""S3 credentials by reference: the environment holds them and names the catalogs that may use them."""

import os
import re

from lakefork.errors import PermissionDeniedError, SetupError


def named_credentials(reference: str) -> dict[str, str]:
    """Returns the keys as arguments of pyarrow's S3FileSystem."""
    names = {
        "access_key": _variable(reference, "ACCESS_KEY_ID"),
        "secret_key": _variable(reference, "SECRET_ACCESS_KEY"),
    }
    missing = [name for name in names.values() if not os.environ.get(name)]
    if missing:
        raise SetupError(f"the S3 credentials {reference} are not in the environment: set {' and '.join(missing)}")
    return {part: os.environ[name] for part, name in names.items()}


def require_allowed(reference: str, catalog: str) -> None:
    """Raises unless the operator named the catalog. The message does not reveal whether such keys exist."""
    variable = _variable(reference, "CATALOGS")
    patterns = (one.strip() for one in os.environ.get(variable, "").split(","))
    if not any(_matches(pattern, catalog) for pattern in patterns):
        raise PermissionDeniedError(
            f"catalog {catalog} may not use the S3 credentials {reference}: the operator can allow it in {variable}"
        )


def _matches(pattern: str, catalog: str) -> bool:
    """Matches a name against a pattern; * stands for any characters, so that future forks can be named."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), catalog) is not None


def _variable(reference: str, part: str) -> str:
    return f"LAKEFORK_S3_{reference.upper()}_{part}"
