"""What a contract may say of a ``valkey`` resource."""

from __future__ import annotations

from typing import Literal

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the adapter. Whether contents are kept is said by the entry's durability."""

    server: str = ""  # the program; empty: valkey-server, else redis-server, wherever PATH has one
    max_memory: int = 256 << 20  # bytes of the server, all environments together
    ttl: Literal["remaining", "absolute"] = "remaining"  # what a sealed key's time to live counts from
    survives: Literal["process", "os"] = "process"

    def __post_init__(self) -> None:
        if self.max_memory < 8 << 20:
            raise ValueError("max_memory is at least 8388608 bytes: a server needs some for itself")
