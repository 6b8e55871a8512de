"""A client of live queries over a real socket, that keeps a copy of its query's rows."""

import json
import time
from collections import defaultdict
from contextlib import ExitStack
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from support.api_server import ApiServer

Message = dict[str, Any]
PATIENCE_SECONDS = 30.0  # for what comes at once unless something is broken


class LiveClient:
    """One socket. copies: rows by subscription and key; told: all messages by subscription."""

    def __init__(self, server: ApiServer, token: str | None, key: str = "id", **arguments: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = server.url.replace("http", "ws", 1) + "/ws"
        given = {"compression": None, "max_size": None, "proxy": None, **arguments}
        self._opened = ExitStack()
        self.socket = self._opened.enter_context(connect(url, additional_headers=headers, **given))
        self._key = key
        self.copies: dict[str, dict[Any, Message]] = defaultdict(dict)
        self.told: dict[str, list[Message]] = defaultdict(list)
        self.resume: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def send(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def next(self, seconds: float = PATIENCE_SECONDS) -> Message:
        """The next message, applied to the copy."""
        message: Message = json.loads(self.socket.recv(seconds))
        self._apply(message)
        return message

    def subscribe(self, name: str, sql: str, *, wait: bool = True, **options: Any) -> Message:
        """Subscribes, and returns the last page of initial data, or what came instead."""
        self.send(type="subscribe", subscriptions=[{"id": name, "sql": sql, "options": options}])
        return self.until(lambda message: _is_settled(message, name)) if wait else {}

    def until(self, is_it: Any, seconds: float = PATIENCE_SECONDS) -> Message:
        deadline = time.monotonic() + seconds
        while True:
            message = self.next(max(0.01, deadline - time.monotonic()))
            if is_it(message):
                return message

    def change(self, name: str = "s") -> Message:
        """The next change of a subscription."""
        return self.until(lambda message: message["type"] == "change" and message["subscription_id"] == name)

    def quiet(self, seconds: float = 0.3) -> list[Message]:
        """What still comes until nothing has come for a while."""
        found = []
        while True:
            try:
                found.append(self.next(seconds))
            except TimeoutError:
                return found

    def closed(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Reads until the server closes; returns the code."""
        try:
            while True:
                self.next(seconds)
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd else 1006

    def _apply(self, message: Message) -> None:
        name = message.get("subscription_id")
        if name is None:
            return
        self.told[name].append(message)
        copy = self.copies[name]
        if message["type"] == "resync":
            copy.clear()
            self.resume.pop(name, None)
        elif message["type"] == "initial_data":
            copy |= {row[self._key]: row for row in message["rows"] if self._key in row}
        elif message["type"] == "change":
            if "old_values" in message and self._key in message["old_values"]:
                copy.pop(message["old_values"][self._key], None)
            if "new_values" in message and self._key in message["new_values"]:
                copy[message["new_values"][self._key]] = message["new_values"]
        if "resume" in message:
            self.resume[name] = message["resume"]


def _is_settled(message: Message, name: str) -> bool:
    if message.get("subscription_id") != name:
        return False
    return message["type"] in ("error", "ended") or (message["type"] == "initial_data" and message["last"])
