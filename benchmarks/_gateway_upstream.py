"""The least server: 1 KiB for each request, over connections that stay. ``python _gateway_upstream.py PORT CORE``."""

from __future__ import annotations

import asyncio
import os
import sys

BODY = b"x" * 1024
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
LAST = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Heads only: nobody sends this server a body."""
        *heads, self._unread = (self._unread + data).split(b"\r\n\r\n")
        for head in heads:
            last = b"connection: close" in head.lower()
            self._transport.write(LAST if last else ANSWER)
            if last:
                self._transport.close()


async def main(port: int, core: int) -> None:
    """Serve for ever."""
    os.sched_setaffinity(0, {core})
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:3])))
