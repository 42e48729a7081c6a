"""A client of OpenEnv's protocol that speaks it by hand, well or badly."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import CloseConnection, Event, Ping, Request, TextMessage
from wsproto.utilities import LocalProtocolError

from tests.integration.http_kit import PATIENCE_S


class Talker:
    """A client that speaks the protocol by hand, and blocks."""

    def __init__(self, url: str, **headers: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), PATIENCE_S)
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        host = headers.pop("host", f"{address.hostname}:{address.port}")
        more = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.socket.sendall(self._ws.send(Request(host=host, target="/ws", extra_headers=more)))
        self.begun = self._next()

    def _next(self) -> Event:
        while not self._events:
            data = self.socket.recv(65_536)
            self._ws.receive_data(data or None)
            self._events += list(self._ws.events())
        return self._events.pop(0)

    def send(self, message: object) -> None:
        """Say something, and don't wait for the answer."""
        text = message if isinstance(message, str) else json.dumps(message)
        self.socket.sendall(self._ws.send(TextMessage(text)))

    def say(self, message: object) -> dict[str, Any]:
        """The answer."""
        self.send(message)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next message; how it was closed, where it was."""
        text = ""
        while True:
            event = self._next()
            if isinstance(event, CloseConnection):
                return {"closed": event.code}
            if isinstance(event, Ping):
                with suppress(LocalProtocolError):  # where the other side closes already
                    self.socket.sendall(self._ws.send(event.response()))
                continue
            assert isinstance(event, TextMessage)
            text += event.data
            if event.message_finished:
                found: dict[str, Any] = json.loads(text)
                return found


@contextmanager
def talking(url: str, **headers: str) -> Iterator[Talker]:
    """A talker, whose connection is closed at the end."""
    talker = Talker(url, **headers)
    with talker.socket:
        yield talker
