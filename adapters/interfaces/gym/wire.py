"""Messages between a process that has a seat and the one that has the engine: MessagePack, each with its length."""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from statefork.adapters.interfaces.gym.seats import Glimpse
from statefork.journal.values import Json

_LENGTH = struct.Struct(">I")
MESSAGE_BYTES_MAX = 256 * 1024 * 1024


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants done. Which fields count depends on ``what``."""

    what: str  # take, begin, act, judge, snapshot, fork, leave; while judging query, look, base_url, score, fail
    name: str | None = None
    at: str | None = None
    action: dict[str, Json] | None = None
    timeout_s: float | None = None
    n: int = 0
    sql: str = ""
    parameters: list[Any] = []
    score: float = 0.0
    detail: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: an error object of the control door, or what was asked for."""

    error: dict[str, Any] | None = None
    value: Any = None
    glimpse: Glimpse | None = None


class Line:
    """One end of a connection. Raises EOFError when the other end is gone."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, message: Ask | Reply) -> None:
        """Send one message."""
        data = msgspec.msgpack.encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise EOFError(str(error)) from error

    def ask(self) -> Ask:
        """The next message of a client."""
        return msgspec.msgpack.decode(self._read(), type=Ask)

    def reply(self) -> Reply:
        """The next message of the engine's end."""
        return msgspec.msgpack.decode(self._read(), type=Reply)

    def _read(self) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MESSAGE_BYTES_MAX:
            raise EOFError(f"a message of {length} bytes is none of ours")
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                piece = self._socket.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                raise EOFError(str(error)) from error
            if not piece:
                raise EOFError("the other end is gone")
            data += piece
        return bytes(data)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
