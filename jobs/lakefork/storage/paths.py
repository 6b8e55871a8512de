"""Names of users, namespaces and tables as parts of paths, and names of credentials in them."""

import hashlib
import re
from urllib.parse import quote

LONGEST_PART = 200
_WITH_CREDENTIALS = re.compile(r"s3://(\w+)@", re.ASCII)


def path_part(name: str) -> str:
    """Only letters, digits, _ and - stay; of a name too long for a file system its beginning and a hash of all."""
    encoded = quote(name, safe="").replace(".", "%2E").replace("~", "%7E") or "%"
    if len(encoded) <= LONGEST_PART:
        return encoded
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{encoded[: LONGEST_PART - 33]}~{digest}"


def credentials_of(path: str) -> str | None:
    """The name in s3://NAME@bucket/key of the credentials that open it."""
    found = _WITH_CREDENTIALS.match(path)
    return found[1] if found else None


def with_credentials(path: str, name: str) -> str:
    return path.replace("s3://", f"s3://{name}@", 1)


def without_credentials(path: str) -> str:
    return _WITH_CREDENTIALS.sub("s3://", path, count=1)
