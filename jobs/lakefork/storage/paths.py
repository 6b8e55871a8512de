"""Names of users, namespaces, tables and credentials in paths."""

import hashlib
import re
from urllib.parse import quote

LONGEST_PART = 200
_PLAIN = re.compile(r"(s3:/)?[A-Za-z0-9/_.~-]*")
_WITH_CREDENTIALS = re.compile(r"s3://(\w+)@", re.ASCII)


def path_part(name: str) -> str:
    """Percent-encodes all but letters, digits, _ and -; shortens a long name to its beginning and a hash."""
    encoded = quote(name, safe="").replace(".", "%2E").replace("~", "%7E") or "%"
    if len(encoded) <= LONGEST_PART:
        return encoded
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{encoded[: LONGEST_PART - 33]}~{digest}"


def credentials_of(path: str) -> str | None:
    """Returns the name of the credentials in s3://NAME@bucket/key."""
    found = _WITH_CREDENTIALS.match(path)
    return found[1] if found else None


def with_credentials(path: str, name: str) -> str:
    return path.replace("s3://", f"s3://{name}@", 1)


def without_credentials(path: str) -> str:
    return _WITH_CREDENTIALS.sub("s3://", path, count=1)


def normal_path(path: str) -> str:
    """Normalizes a path like lakefork.normal_path: no doubled or trailing slashes, s3a and s3n become s3, no file:."""
    cleaned = re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/+", "/", path))
    scheme = re.match(r"[a-z][a-z0-9+.-]*://", cleaned)
    tidy = re.sub(r"/+", "/", cleaned[scheme.end() :] if scheme else cleaned)
    if len(tidy) > 1:
        tidy = tidy.removesuffix("/")
    return f"{scheme[0]}{tidy.lstrip('/')}" if scheme else tidy


def place(path: str) -> str:
    """Returns the normal path without the name of credentials, like lakefork.place in SQL."""
    return re.sub(r"^s3://[^/@]*@", "s3://", normal_path(path), count=1)


def spellings(path: str) -> set[str]:
    """Returns other spellings of a path: percent-encoded by the rules of URLs, or of forms.

    Paths of Lakefork are never decoded: a % in them is part of a name (path_part).
    """
    if _PLAIN.fullmatch(path):
        return {path}
    scheme, mark, rest = path.partition("://") if "://" in path else ("", "", path)
    return {path} | {f"{scheme}{mark}{quote(rest, safe=safe)}" for safe in ("/", "/:@!$&'()*+,;=")}


def is_below(path: str, directory: str) -> bool:
    """Tells whether a path lies within a directory, by whole names."""
    return path.startswith(f"{directory.rstrip('/')}/")
