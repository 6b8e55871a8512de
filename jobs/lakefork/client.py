"""A client of the API server: statements in, rows or one error out."""

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect as open_socket

from lakefork import errors
from lakefork.errors import LakeforkError

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.2, 10.0  # before a lost connection is opened again
ARROW = "application/vnd.apache.arrow.stream"


class ServerError(LakeforkError):
    """What the server answered, where it is about the server and not about the statement; status: of HTTP."""

    def __init__(self, message: str, code: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.status, self.retry_after = code, status, retry_after
        self.retryable = status in (429, 503)


_BY_CODE: dict[str, type[LakeforkError]] = {
    kind.code: kind
    for kind in (
        errors.InvalidInputError, errors.NotFoundError, errors.ConflictError, errors.PermissionDeniedError,
        errors.LimitError, errors.TooLongError, errors.AlreadyExistsError, errors.DatabaseError,
        errors.OutcomeUnknownError, errors.StorageError, errors.LeaseHeldError,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """The answer of one statement; rows and columns are empty for those that return none."""

    statement: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    affected_rows: int | None = None
    truncated: bool = False


class Client:
    """One connection pool to a server; threads may share it."""

    def __init__(self, url: str, token: str, *, namespace: str | None = None, timeout: float = 120, verify: Any = True):
        self._namespace = namespace
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=timeout, verify=verify, trust_env=False
        )

    def execute(self, sql: str, params: Sequence[Any] = (), *, idempotency_key: str | None = None) -> list[Result]:
        """The answers of all statements, in order.

        With a key, repeating the same request does nothing more and answers as the first time: see new_key.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = self._post(sql, params, headers)
        found = _json(answer)
        if found.get("status") != "success":
            raise _error(answer, found)
        return [_result(one) for one in found["results"]]

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[list[Any]]:
        """The rows of the last statement."""
        return self.execute(sql, params)[-1].rows

    def arrow(self, sql: str, params: Sequence[Any] = ()) -> "pa.Table":
        """The rows of one query with their types; a cut answer is an error."""
        import pyarrow as pa

        with self._http.stream("POST", "/api/sql", json=self._body(sql, params), headers={"Accept": ARROW}) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise _error(answer, _json(answer))
            content = _received(answer)
        batches: list[pa.RecordBatch] = []
        about: dict[bytes, bytes] = {}
        with pa.ipc.open_stream(content) as reader:
            schema = reader.schema
            while True:
                try:
                    batch, metadata = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    break
                about |= dict(metadata or {})
                batches.append(batch)
        if failed := about.get(b"lakefork.error"):
            raise _error(answer, {"error": json.loads(failed)})
        if about.get(b"lakefork.truncated"):
            raise errors.LimitError("the answer has more rows than the server gives (setting server.max_rows)")
        return pa.Table.from_batches(batches, schema=schema)

    def subscribe(
        self, sql: str, *, last_rows: int | None = None, resume: str | None = None, reconnect: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yields the messages of a live query (docs/live.md), for ever; it ends with `ended` or an error.

        A connection that is lost is opened again, and the query resumed after the last message; where that is not
        possible, the rows are told again after a `resync`.
        """
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                for message in self._live(sql, last_rows, resume):
                    wait = FIRST_WAIT_SECONDS
                    resume = message.get("resume", None if message["type"] == "resync" else resume)
                    yield message
                    if message["type"] == "ended":
                        return
            except (OSError, WebSocketException) as error:
                if not reconnect:
                    raise ServerError(f"the connection was lost: {error}", "unreachable", 0) from error
            if not reconnect:
                return
            if resume is None:
                yield {"type": "resync", "subscription_id": "1", "reason": "the connection was lost"}
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)

    def _live(self, sql: str, last_rows: int | None, resume: str | None) -> Iterator[dict[str, Any]]:
        given = {"last_rows": last_rows, "resume": resume}
        options = {name: value for name, value in given.items() if value is not None}
        url = str(self._http.base_url.copy_with(scheme=self._http.base_url.scheme.replace("http", "ws"))).rstrip("/")
        headers = {"Authorization": self._http.headers["Authorization"]}
        with open_socket(f"{url}/ws", additional_headers=headers, max_size=None, proxy=None) as socket:
            subscription = {"id": "1", "sql": sql, "options": options}
            socket.send(json.dumps({"type": "subscribe", "subscriptions": [subscription]}))
            for text in socket:
                message = json.loads(text)
                if message["type"] == "error":
                    kind = _BY_CODE.get("invalid_input" if message["code"] == "syntax_error" else message["code"])
                    raise kind(message["message"]) if kind else ServerError(message["message"], message["code"], 0)
                yield message

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _body(self, sql: str, params: Sequence[Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"sql": sql}
        if params:
            body["params"] = list(params)
        if self._namespace:
            body["namespace"] = self._namespace
        return body

    def _post(self, sql: str, params: Sequence[Any], headers: dict[str, str]) -> httpx.Response:
        try:
            return self._http.post("/api/sql", json=self._body(sql, params), headers=headers)
        except httpx.HTTPError as error:
            raise ServerError(f"the server did not answer: {error}", "unreachable", 0) from error


def connect(url: str, token: str, *, namespace: str | None = None, timeout: float = 120, verify: Any = True) -> Client:
    """A client of the server at a URL; namespace: where tables without one are looked up; verify: as httpx has it."""
    return Client(url, token, namespace=namespace, timeout=timeout, verify=verify)


def new_key() -> str:
    """A key for a request that may have to be repeated."""
    return uuid.uuid4().hex


def _received(answer: httpx.Response) -> bytes:
    """Also what came before a stream was broken off, which says why."""
    parts: list[bytes] = []
    try:
        parts.extend(answer.iter_raw())
    except httpx.HTTPError as error:
        content = b"".join(parts)
        if b"lakefork.error" not in content[-4_096:]:
            raise ServerError(f"the answer broke off: {error}", "unreachable", answer.status_code) from error
    return b"".join(parts)


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        return dict(answer.json())
    except ValueError:
        said = "the server's answer is no JSON: is this the address of `lakefork serve`?"
        raise ServerError(said, "unreachable", answer.status_code) from None


def _result(found: dict[str, Any]) -> Result:
    return Result(
        found["statement"], found.get("columns", []), found.get("rows", []), found.get("affected_rows"),
        found.get("truncated", False),
    )  # fmt: skip


def _error(answer: httpx.Response, found: dict[str, Any]) -> LakeforkError:
    about = found.get("error") or {"code": "unreachable", "message": f"the server answered {answer.status_code}"}
    code, message = about["code"], about["message"]
    if kind := _BY_CODE.get("invalid_input" if code == "syntax_error" else code):
        return kind(message)
    retry_after = answer.headers.get("Retry-After")
    return ServerError(message, code, answer.status_code, float(retry_after) if retry_after else None)
