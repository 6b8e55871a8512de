"""Names of users, namespaces and tables as parts of paths."""

import hashlib
from urllib.parse import quote

LONGEST_PART = 200


def path_part(name: str) -> str:
    """Only letters, digits, _ and - stay; of a name too long for a file system its beginning and a hash of all."""
    encoded = quote(name, safe="").replace(".", "%2E").replace("~", "%7E") or "%"
    if len(encoded) <= LONGEST_PART:
        return encoded
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{encoded[: LONGEST_PART - 33]}~{digest}"
