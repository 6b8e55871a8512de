"""What a request to /api/sql holds, read within limits and checked."""

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.types import Receive

from lakefork.server.refusals import RefusedError

FIELDS = ("sql", "params", "namespace")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


@dataclass(frozen=True)
class SqlRequest:
    sql: str
    params: tuple[Any, ...] = ()
    namespace: str | None = None

    def digest(self) -> str:
        """Equal for equal requests."""
        text = json.dumps([self.sql, self.params, self.namespace], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, most: int, seconds: float) -> bytes:
    """All of it, or a refusal as soon as it is too large or too slow, whatever the headers say."""
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise _too_large(most)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise RefusedError(
            408, "request_timeout", f"the request was not there in full after {seconds:g} s", {"Connection": "close"}
        ) from None


def _too_large(most: int) -> RefusedError:
    message = f"the request is larger than {most >> 10} KB (setting server.max_body_kb)"
    return RefusedError(413, "too_large", message, {"Connection": "close"})


def parse_request(body: bytes) -> SqlRequest:
    try:
        found = json.loads(body.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        _refuse("the request is not UTF-8")
    except RecursionError:
        _refuse("the request is nested too deeply")
    except ValueError as error:
        _refuse(f"the request is not JSON: {str(error)[:200]}")
    if not isinstance(found, dict):
        _refuse('the request must be a JSON object such as {"sql": "SELECT 1"}')
    if unknown := sorted(found.keys() - set(FIELDS)):
        _refuse(f"the request has a field {unknown[0][:50]!r}; there are {', '.join(FIELDS)}")
    sql, params, namespace = found.get("sql"), found.get("params"), found.get("namespace")
    if not isinstance(sql, str):
        _refuse("sql must be a text with one or more statements")
    if params is not None and not isinstance(params, list):
        _refuse("params must be a list")
    if namespace is not None and not (isinstance(namespace, str) and namespace and namespace.isprintable()):
        _refuse("namespace must be a name")
    return SqlRequest(sql, tuple(params or ()), namespace)


def idempotency_key(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"idempotency-key")
    if given is None:
        return None
    text = given.decode("latin-1")
    if not _KEY.fullmatch(text):
        _refuse("Idempotency-Key must have 1 to 200 visible ASCII characters")
    return text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _refuse(message: str) -> NoReturn:
    raise RefusedError(400, "bad_request", message)
