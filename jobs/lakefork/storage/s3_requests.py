"""S3 requests that pyarrow lacks: paged listings, bulk deletes, conditional puts, tags; with AWS Signature 4."""

import base64
import datetime
import hashlib
import hmac
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pyarrow as pa

from lakefork.storage import StorageOptions, open_path
from lakefork.storage.credentials import named_credentials
from lakefork.storage.paths import credentials_of

if TYPE_CHECKING:  # imported when S3 is used, because it takes a fifth of an engine's start
    import httpx

KEYS_PER_DELETE = KEYS_PER_LIST = 1000  # limits of S3
WAITS = (0.2, 0.5, 1, 2, 4)  # S3 asks to slow down, or is briefly unavailable
TRASH_TAG = "lakefork-trash"
PART = 1 << 20


class NotSupportedError(OSError):
    """The storage does not support this S3 request."""


@dataclass(frozen=True)
class S3Object:
    key: str
    size_bytes: int
    modified: datetime.datetime


@dataclass(frozen=True)
class Signer:
    access_key: str
    secret_key: str
    token: str
    region: str

    def headers(self, method: str, url: "httpx.URL", body: bytes | pa.Buffer) -> dict[str, str]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        signed = {"host": url.netloc.decode(), "x-amz-content-sha256": digest, "x-amz-date": now}
        if self.token:
            signed["x-amz-security-token"] = self.token
        names = ";".join(sorted(signed))
        path, _, query = url.raw_path.decode().partition("?")
        lines = [method, path, query, *(f"{name}:{signed[name]}" for name in sorted(signed)), "", names, digest]
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256("\n".join(lines).encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        credential = f"Credential={self.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        return {**signed, "authorization": f"AWS4-HMAC-SHA256 {credential}"}


class S3Requests:
    """A client for one set of credentials; threads may share it."""

    def __init__(self, endpoint: str, signer: Signer) -> None:
        import httpx

        self._endpoint = endpoint
        self._signer = signer
        self._client = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=32))

    def list_objects(
        self, bucket: str, prefix: str, *, after: str = "", delimiter: str = ""
    ) -> Iterator[S3Object | str]:
        """Yields objects in key order, one page in memory at a time; with a delimiter also prefixes."""
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url", "max-keys": str(KEYS_PER_LIST)}
        query |= {name: value for name, value in (("start-after", after), ("delimiter", delimiter)) if value}
        while True:
            page = self._answer("GET", bucket, query=query)
            for found in page.findall("{*}CommonPrefixes"):
                yield unquote_plus(_text(found, "Prefix"))
            for found in page.findall("{*}Contents"):
                modified = datetime.datetime.fromisoformat(_text(found, "LastModified"))
                yield S3Object(unquote_plus(_text(found, "Key")), int(_text(found, "Size")), modified)
            if _text(page, "IsTruncated") != "true":
                return
            query["continuation-token"] = _text(page, "NextContinuationToken")

    def delete_objects(self, bucket: str, keys: Sequence[str]) -> dict[str, str]:
        """Deletes up to a thousand objects; returns those that could not be deleted, with the reason. Missing ones
        are fine.
        """
        listed = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
        body = f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Quiet>true</Quiet>{listed}</Delete>'.encode()
        answer = self._answer("POST", bucket, query={"delete": ""}, body=body)
        return {_text(one, "Key"): _text(one, "Message") or _text(one, "Code") for one in answer.findall("{*}Error")}

    def create_object(self, bucket: str, key: str, content: bytes | pa.Buffer) -> None:
        """Creates an object; raises FileExistsError if it exists, also if it is created concurrently."""
        self._send("PUT", bucket, key, {}, content, {"if-none-match": "*"})

    def tag(self, bucket: str, key: str, value: str) -> None:
        tags = f"<TagSet><Tag><Key>{TRASH_TAG}</Key><Value>{value}</Value></Tag></TagSet>"
        self._send("PUT", bucket, key, {"tagging": ""}, f"<Tagging>{tags}</Tagging>".encode())

    def untag(self, bucket: str, key: str) -> None:
        self._send("DELETE", bucket, key, {"tagging": ""})

    def _answer(
        self, method: str, bucket: str, *, query: Mapping[str, str], body: bytes = b""
    ) -> "ElementTree.Element[str]":
        return ElementTree.fromstring(self._send(method, bucket, "", query, body).content)  # noqa: S314 - the lake's own storage

    def _send(
        self, method: str, bucket: str, key: str, query: Mapping[str, str], body: bytes | pa.Buffer = b"",
        more_headers: Mapping[str, str] | None = None,
    ) -> "httpx.Response":  # fmt: skip
        import httpx

        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(query.items()))
        url = httpx.URL(f"{self._endpoint}/{quote(bucket)}/{quote(key, safe='/')}{'?' * bool(asked)}{asked}")
        given = dict(more_headers or {}) | (_body_headers(body) if len(body) else {})
        for wait in (*WAITS, None):
            try:
                headers = self._signer.headers(method, url, body) | given
                response = self._client.request(method, url, content=_parts(body), headers=headers)
            except httpx.TransportError as error:
                if wait is None:
                    raise OSError(f"S3 does not answer: {error}") from error
            else:
                if response.status_code < 300:
                    return response
                if wait is None or response.status_code not in (409, 429, 500, 502, 503, 504):
                    raise _error(response, bucket, key)
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")


def _body_headers(body: bytes | pa.Buffer) -> dict[str, str]:
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return {"content-md5": base64.b64encode(digest).decode(), "content-length": str(len(body))}


def _parts(body: bytes | pa.Buffer) -> bytes | Iterator[bytes]:
    """Splits a large body, so that it is not copied as a whole."""
    if isinstance(body, bytes):
        return body
    return (body.slice(start, min(PART, body.size - start)).to_pybytes() for start in range(0, body.size, PART))


def _error(response: "httpx.Response", bucket: str, key: str) -> OSError:
    try:
        said = ElementTree.fromstring(response.content)  # noqa: S314 - as above
        reason = f"{_text(said, 'Code')}: {_text(said, 'Message')}"
    except ElementTree.ParseError:
        reason = f"status {response.status_code}"
    kind = {404: FileNotFoundError, 412: FileExistsError, 501: NotSupportedError}.get(response.status_code, OSError)
    return kind(f"s3://{bucket}/{key}: {reason}".splitlines()[0])


def _text(element: "ElementTree.Element[str]", name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def requests_for(path: str, options: StorageOptions) -> S3Requests | None:
    """Returns a client; None if the keys are not in the environment (machine roles), where only pyarrow finds them."""
    reference = credentials_of(path)
    if reference is None and not (os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY")):
        return None
    return _requests(options, reference, open_path(path, options)[0].region)


@cache
def _requests(options: StorageOptions, reference: str | None, region: str) -> S3Requests:
    if reference:
        found = named_credentials(reference)
        signer = Signer(found["access_key"], found["secret_key"], "", region)
    else:
        token = os.environ.get("AWS_SESSION_TOKEN", "")
        signer = Signer(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], token, region)
    endpoint = options.s3_endpoint.rstrip("/") or f"https://s3.{region}.amazonaws.com"
    return S3Requests(endpoint if "://" in endpoint else f"https://{endpoint}", signer)


def bucket_and_key(path: str, options: StorageOptions) -> tuple[str, str]:
    bucket, _, key = open_path(path, options)[1].partition("/")
    return bucket, key
