"""Many sockets with many subscriptions in a process of their own; tells when each value arrived.

stdin: one JSON object with url and sockets, each with a token and subscriptions; then a line to stop.
stdout: {"subscribe": seconds of each subscription}, then {"arrived": {value: [first, last, count]}, "messages": n}.
"""

import asyncio
import base64
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

SOCKETS_AT_ONCE = 16


class Socket(asyncio.Protocol):
    """A WebSocket that costs as little as one can, so that the server is what is measured. take: gets each message."""

    def __init__(self, host: str, token: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self._hello = (
            f"GET /ws HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Version: 13\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        self.opened = asyncio.get_running_loop().create_future()
        self.take: Any = None
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._hello.encode())

    def send(self, text: str) -> None:
        self._frame(0x81, text.encode())

    def _frame(self, first: int, content: bytes) -> None:
        """Masked by zeros, which leave it as it is."""
        size = len(content)
        head = bytes([first, 0x80 | size]) if size < 126 else bytes([first, 0x80 | 126]) + size.to_bytes(2, "big")
        self._transport.write(head + b"\0\0\0\0" + content)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        if not self.opened.done():
            head, found, buffer = buffer.partition(b"\r\n\r\n")
            if not found:
                self._buffer = head
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self.opened.set_result(None)
        place = 0
        while len(buffer) - place >= 2:
            first, size, start = buffer[place], buffer[place + 1], place + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                size, start = int.from_bytes(buffer[start : start + width], "big"), start + width
            if len(buffer) < start + size:
                break
            content = buffer[start : start + size]
            if first == 0x89:
                self._frame(0x8A, content)
            elif first == 0x81:
                self.take(content)
            place = start + size
        self._buffer = buffer[place:]

    def close(self) -> None:
        self._transport.close()


class Sockets:
    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._slots = asyncio.Semaphore(SOCKETS_AT_ONCE)
        self._sockets: list[Socket] = []
        self.subscribe: list[float] = []
        self.arrived: dict[str, list[float]] = {}
        self.messages = 0

    async def open(self, one: dict[str, Any]) -> None:
        url = urlsplit(self._task["url"])
        loop = asyncio.get_running_loop()
        async with self._slots:
            _, socket = await loop.create_connection(lambda: Socket(url.netloc, one["token"]), url.hostname, url.port)
            await socket.opened
            started, waiting, ready = time.monotonic(), len(one["subscriptions"]), loop.create_future()

            def first(content: bytes) -> None:
                nonlocal waiting
                message = json.loads(content)
                assert message["type"] in ("initial_data", "change"), message
                if message.get("last"):
                    self.subscribe.append(time.monotonic() - started)
                    waiting -= 1
                    if not waiting:
                        socket.take = self.take
                        ready.set_result(None)

            socket.take = first
            socket.send(json.dumps({"type": "subscribe", "subscriptions": one["subscriptions"]}))
            await ready
            self._sockets.append(socket)

    def take(self, content: bytes) -> None:
        now = time.monotonic()
        self.messages += 1
        _, _, rest = content.partition(b'"new_values":{"v":"')
        value = rest.partition(b'"')[0].decode()
        found = self.arrived.get(value)
        if found is None:
            self.arrived[value] = [now, now, 1]
        else:
            found[1], found[2] = now, found[2] + 1

    async def run(self) -> None:
        await asyncio.gather(*(self.open(one) for one in self._task["sockets"]))
        print(json.dumps({"subscribe": self.subscribe}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for socket in self._sockets:
            socket.close()
        print(json.dumps({"arrived": self.arrived, "messages": self.messages}), flush=True)


async def main() -> None:
    await Sockets(json.loads(sys.stdin.readline())).run()


if __name__ == "__main__":
    asyncio.run(main())
