"""What a client asked for, once it passed the rules of heads.py, and what of it lives on after its lease."""

from __future__ import annotations

from typing import Any

import h11
import msgspec

from statefork.adapters.interfaces.gateway.wire import Wire
from statefork.engine.origins import Origin
from statefork.engine.ports import AdmissionRequest, RequestLease, Route


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that passed the rules of heads.py."""

    request: h11.Request
    method: str
    host: str  # the canonical authority
    path: bytes
    url: str
    length: int | None  # None = chunked
    route: Route
    origin: Origin | None = None  # outside of the world

    def admission(self, door: Any, kind: str, pinned_epoch: int | None = None) -> AdmissionRequest:
        """How the kernel is asked for this request, or for a message of it."""
        return AdmissionRequest(
            identity=door.identity,
            env=door.env,
            method=self.method,
            url=self.url,
            kind=kind,
            pinned_epoch=pinned_epoch,
        )


class Opened(msgspec.Struct, kw_only=True):
    """A response that lives on after its request's lease: an event stream, or a WebSocket."""

    upstream: Wire
    lease: RequestLease  # of the request that opened it; ended, but it knows where the connection belongs
    websocket: bool

    @property
    def name(self) -> str:
        """What a person would call it."""
        return "WebSocket" if self.websocket else "event stream"
