"""A worker: serves requests from its socket one by one, and streams the rows back."""

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lakefork.errors import InvalidInputError, LakeforkError, PermissionDeniedError
from lakefork.sql.workers.duck import AnswerLimits, Duck, OutOfMemoryError, domain_errors, reading_mb
from lakefork.sql.workers.limits import data_bytes, give_back_memory, limit_cpu, limit_memory, yield_to_others
from lakefork.sql.workers.messages import (
    END,
    ERROR,
    READY,
    ROWS,
    ClosedError,
    Probe,
    Read,
    Request,
    RequestReader,
    receive,
    send,
    stream_of,
)
from lakefork.storage import StorageOptions

RULE_FAILED = "permission denied: a rule of system.users cannot be applied to this table"


def serve(sock: socket.socket, config: dict[str, Any]) -> None:
    """Returns when the engine has closed the socket, or when the process has grown or failed too much to go on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C and ends the worker
    os.environ.update(config["environment"])
    memory_mb = config["memory_mb"]
    duck = Duck(StorageOptions(**config["storage"]), memory_mb=memory_mb, threads=config["threads"])
    requests = RequestReader(config["hot_cache_mb"] << 20)
    yield_to_others()
    baseline = limit_memory(memory_mb + reading_mb(memory_mb))
    try:
        send(sock, READY, {})
        while True:
            frame = receive(sock)
            limit_cpu(config["timeout_seconds"] * config["threads"])
            is_answered = _answer(sock, duck, requests.read(frame))
            del frame
            is_retired = _has_grown(baseline, memory_mb) or not (is_answered or duck.is_sound())
            send(sock, END, {"retired": is_retired})
            if is_retired:
                return
    except ClosedError:
        return


def _has_grown(baseline: int, memory_mb: int) -> bool:
    """Tells whether memory left by earlier statements would be missing for the next one, beyond the reader's cache."""
    most = baseline + ((reading_mb(memory_mb) + memory_mb // 4) << 20)
    if data_bytes() > most:
        give_back_memory()
    return data_bytes() > most


def _answer(sock: socket.socket, duck: Duck, request: Request | Probe) -> bool:
    """False if it failed."""
    try:
        if isinstance(request, Probe):
            excluded = duck.excluded_by_bloom_filter(request.paths, request.column_id, request.literals)
            _send_rows(sock, pa.table({"path": pa.array(excluded, pa.string())}))
        else:
            with domain_errors():
                run_request(duck, request, lambda rows: _send_rows(sock, rows))
        return True
    except ClosedError:
        raise
    except LakeforkError as error:
        message = str(error.args[0]) if error.args else ""
        send(sock, ERROR, {"code": error.code, "message": message})
    except Exception as error:
        send(
            sock,
            ERROR,
            {
                "code": "error",
                "message": f"the query engine failed: {str(error).partition(chr(10))[0] or 'unknown reason'}",
            },
        )
    return False


def run_request(duck: Duck, request: Request, send_rows: Callable[[pa.Table], None]) -> None:
    """Runs a request and sends the rows in chunks."""
    relations = dict(request.relations)
    for name, row_filter in request.row_filters.items():
        within = Read(name, f"SELECT * FROM given WHERE {row_filter}", {"given": name}, RULE_FAILED)
        relations[name] = _read(duck, within, relations)
    rows = None
    for read in request.reads:
        rows = _read(duck, read, relations)
        relations[read.name] = rows
    if request.sql is None:
        if rows is not None:
            send_rows(rows)
        return
    hidden = {name for read in request.reads for name in read.relations.values()}
    visible = {name: rows for name, rows in relations.items() if name not in hidden}
    limits = AnswerLimits(request.max_rows, request.setting, cut=request.cut)
    chunks = duck.stream(request.sql, visible, request.views, request.paths, limits)
    for chunk in chunks:
        send_rows(chunk)


def _read(duck: Duck, read: Read, relations: dict[str, pa.Table]) -> pa.Table:
    try:
        return duck.read(read.sql, {name: relations[given] for name, given in read.relations.items()})
    except OutOfMemoryError:
        raise
    except InvalidInputError as error:
        if read.refusal is None:
            raise
        raise PermissionDeniedError(read.refusal) from error


def _send_rows(sock: socket.socket, rows: pa.Table) -> None:
    send(sock, ROWS, {}, stream_of(rows))
