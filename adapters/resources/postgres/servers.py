"""The servers of this process, by place: whoever asks for one of a place shares it."""

from __future__ import annotations

import threading
from pathlib import Path

from statefork.adapters.resources.postgres.server import EmbeddedServer, Setup

_servers: dict[Path, EmbeddedServer] = {}
_servers_lock = threading.Lock()


def server_at(setup: Setup) -> EmbeddedServer:
    """The server of a place: one for all who ask in this process."""
    with _servers_lock:
        return _servers.setdefault(setup.place.resolve(), EmbeddedServer(setup))


def running_places() -> list[Path]:
    """Where servers of this process are."""
    with _servers_lock:
        return [place for place, server in _servers.items() if server.process_ids()]


def give_up(place: Path) -> None:
    """Stop the server of a place that will not be used again, whoever uses it. Idempotent."""
    with _servers_lock:
        server = _servers.pop(place.resolve(), None)
    if server is not None:
        server.halt()
