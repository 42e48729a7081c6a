"""A WebSocket client for the tests: through a proxy as Chromium does it, or straight."""

from __future__ import annotations

import anyio
import anyio.abc
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Message, TextMessage
from wsproto.events import Request as Handshake


class Socket:
    """A WebSocket client."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self.frames = WSConnection(ConnectionType.CLIENT)

    async def send(self, event: Event) -> None:
        """Send one event."""
        await self.stream.send(self.frames.send(event))

    async def next(self) -> Event:
        """The next event; whole messages only."""
        parts: list[str | bytes | bytearray] = []
        with anyio.fail_after(10):
            while True:
                for event in self.frames.events():
                    if isinstance(event, Message):
                        parts.append(event.data)
                        if not event.message_finished:
                            continue
                        if isinstance(event, TextMessage):
                            return TextMessage(data="".join(str(part) for part in parts))
                        return BytesMessage(data=b"".join(bytes(part) for part in parts if not isinstance(part, str)))
                    return event
                try:
                    self.frames.receive_data(await self.stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return CloseConnection(1006, "broken")


async def handshake(stream: anyio.abc.SocketStream, host: str, *, path: str = "/ws", tunnel: bool = True) -> Socket:
    """An open WebSocket over a fresh connection to a door."""
    if tunnel:
        await stream.send(f"CONNECT {host}:80 HTTP/1.1\r\nHost: {host}:80\r\n\r\n".encode())
        assert (await stream.receive()).startswith(b"HTTP/1.1 200")
    socket = Socket(stream)
    await socket.send(Handshake(host=host, target=path))
    assert isinstance(await socket.next(), AcceptConnection)
    return socket
