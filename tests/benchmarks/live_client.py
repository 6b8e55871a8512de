"""Many sockets with many subscriptions in a process of their own; tells when each value arrived.

stdin: one JSON object with url and sockets, each with a token and subscriptions; then a line to stop.
stdout: {"subscribe": seconds of each subscription}, then {"arrived": {value: [first, last, count]}, "messages": n}.
"""

import asyncio
import json
import sys
import time
from typing import Any

from websockets.asyncio.client import connect

SOCKETS_AT_ONCE = 16


class Sockets:
    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._slots = asyncio.Semaphore(SOCKETS_AT_ONCE)
        self._stop = asyncio.Event()
        self.ready = asyncio.Semaphore(0)
        self.subscribe: list[float] = []
        self.arrived: dict[str, list[float]] = {}
        self.messages = 0

    async def socket(self, one: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {one['token']}"}
        async with self._slots:
            connecting = connect(
                f"{self._task['url']}/ws", additional_headers=headers, compression=None, proxy=None, max_size=None,
                ping_interval=None,
            )  # fmt: skip
            socket = await connecting.__aenter__()
            started, waiting = time.monotonic(), len(one["subscriptions"])
            await socket.send(json.dumps({"type": "subscribe", "subscriptions": one["subscriptions"]}))
            while waiting:
                message = json.loads(await socket.recv())
                assert message["type"] in ("initial_data", "change"), message
                if message.get("last"):
                    self.subscribe.append(time.monotonic() - started)
                    waiting -= 1
        self.ready.release()
        reading = asyncio.create_task(self._read(socket))
        await self._stop.wait()
        reading.cancel()
        await connecting.__aexit__(None, None, None)

    async def _read(self, socket: Any) -> None:
        async for text in socket:
            now = time.monotonic()
            self.messages += 1
            _, _, rest = text.partition('"new_values":{"v":"')
            value = rest.partition('"')[0]
            found = self.arrived.get(value)
            if found is None:
                self.arrived[value] = [now, now, 1]
            else:
                found[1], found[2] = now, found[2] + 1

    async def run(self) -> None:
        tasks = [asyncio.create_task(self.socket(one)) for one in self._task["sockets"]]
        for _ in tasks:
            await self.ready.acquire()
        print(json.dumps({"subscribe": self.subscribe}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        self._stop.set()
        await asyncio.gather(*tasks)
        print(json.dumps({"arrived": self.arrived, "messages": self.messages}), flush=True)


async def main() -> None:
    await Sockets(json.loads(sys.stdin.readline())).run()


if __name__ == "__main__":
    asyncio.run(main())
