"""One HTTP/1.1 connection over an anyio stream, with a deadline on every wait."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import anyio
import anyio.abc
import h11

from statefork.adapters.interfaces.gateway.limits import Limits
from statefork.adapters.interfaces.gateway.refusals import Refused
from statefork.engine.pointing import Within

_CHUNK_BYTES = 65_536


class Gone(Exception):
    """The other side closed the connection or broke the protocol where nobody is left to be told."""


class Wire:
    """h11's state machine and the stream under it. Closing is abrupt unless both sides said goodbye."""

    def __init__(self, stream: anyio.abc.ByteStream, role: Any, limits: Limits) -> None:
        self.stream = stream
        self.limits = limits
        self._role = role
        self.http = h11.Connection(role, max_incomplete_event_size=limits.head_bytes_max)

    async def receive(self, within_s: float, what: str) -> bytes:
        """Some bytes; empty at the end. Raises Gone at the deadline, naming its limit."""
        try:
            with anyio.fail_after(within_s):
                return await self.stream.receive(_CHUNK_BYTES)
        except anyio.EndOfStream:
            return b""
        except TimeoutError:
            raise Gone(f"{what}: nothing came for {within_s:g} s") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise Gone(f"connection lost: {error!r}") from None

    async def next_event(self, within_s: float, what: str) -> Any:
        """h11's next event. Raises Gone, h11.RemoteProtocolError."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.http.receive_data(await self.receive(within_s, what))

    async def request(self) -> h11.Request | None:
        """The next request's head; None when the client has gone. Raises Refused for what is no request."""
        limits = self.limits
        try:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.receive(limits.idle_s, "idle_s"))
            with anyio.fail_after(limits.head_s):
                while event is h11.NEED_DATA:
                    event = self.http.next_event()
                    if event is h11.NEED_DATA:
                        self.http.receive_data(await self.receive(limits.head_s, "head_s"))
        except TimeoutError:
            raise Refused(408, "limit_exceeded", f"head_s is {limits.head_s:g}", close=True) from None
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            if status == 431:
                raise Refused(431, "limit_exceeded", f"head_bytes_max is {limits.head_bytes_max}", close=True) from None
            raise Refused(status, "bad_request", str(error), close=True) from None
        except Gone:
            return None
        return event if isinstance(event, h11.Request) else None

    async def send(self, event: Any) -> None:
        """Send an event. Raises Gone when the other side does not take it within stall_s."""
        data = self.http.send(event)
        if data:
            await self.send_bytes(data)

    async def send_bytes(self, data: bytes) -> None:
        """Send raw bytes under the same deadline."""
        try:
            with anyio.fail_after(self.limits.stall_s):
                await self.stream.send(data)
        except TimeoutError:
            raise Gone(f"stall_s: nothing was taken for {self.limits.stall_s:g} s") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise Gone(f"connection lost: {error!r}") from None

    async def close(self) -> None:
        """Close the stream, whatever its state."""
        await anyio.aclose_forcefully(self.stream)


async def connect(host: str, port: int, limits: Limits, network: Within | None = None) -> Wire:
    """A connection to an upstream, in another network than the machine's if there is one. Raises Gone."""
    try:
        with anyio.fail_after(limits.connect_s):
            stream = await (anyio.connect_tcp(host, port) if network is None else _connect_in(network, host, port))
            return Wire(stream, h11.CLIENT, limits)
    except TimeoutError:
        raise Gone(f"connect_s: no connection within {limits.connect_s:g} s") from None
    except OSError as error:
        raise Gone(f"can't connect: {error}") from None


async def _connect_in(network: Within, host: str, port: int) -> anyio.abc.SocketStream:
    raw = network.new_socket()
    try:
        raw.setblocking(False)
        failed = raw.connect_ex((host, port))
        if failed == errno.EINPROGRESS:
            await anyio.wait_writable(raw)
            failed = raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed))
        return await anyio.abc.SocketStream.from_socket(raw)
    except BaseException:
        raw.close()
        raise
