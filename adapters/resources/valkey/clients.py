"""Who is in the middle of something on the server: an open MULTI, a blocking command, a subscription."""

from __future__ import annotations

import time
from collections.abc import Iterator

from statefork.adapters.resources.valkey.asking import Admin

_PATIENCE_S = 0.25  # who ends it at once is in nobody's way
_AGAIN_S = 0.005


def holders(admin: Admin, user: str) -> list[str]:
    """What a user's clients hold, each by a name that a person understands."""
    deadline = time.monotonic() + _PATIENCE_S
    while found := [what for client in _clients(admin) if client["user"] == user for what in _held(client)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(_AGAIN_S)
    return found


def _clients(admin: Admin) -> Iterator[dict[str, str]]:
    listed = admin.ask("CLIENT", "LIST")
    if isinstance(listed, list):  # parsed by the driver
        yield from ({str(key): str(value) for key, value in client.items()} for client in listed)
        return
    for line in listed.decode().splitlines():
        yield dict(word.partition("=")[::2] for word in line.split(" "))


def _held(client: dict[str, str]) -> Iterator[str]:
    name = client.get("name") or "unnamed"
    who = f"client {client['id']} ({name}, last command {client.get('cmd', '?')})"
    flags = client.get("flags", "")
    if "x" in flags or int(client.get("multi", -1)) >= 0:
        yield f"{who} has a MULTI open"
    if "b" in flags:
        yield f"{who} waits in a blocking command"
    if any(int(client.get(kind, 0)) for kind in ("sub", "psub", "ssub")):
        yield f"{who} is subscribed to channels"
