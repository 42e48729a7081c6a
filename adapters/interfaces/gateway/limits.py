"""Every bound of the gateway in one place. Each is named in the error that it causes."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Units last in the names: bytes, seconds, counts."""

    head_bytes_max: int = 65_536  # request or response line with all headers
    headers_max: int = 128
    body_bytes_max: int = 64 * 1024 * 1024  # of a request; responses are never held, so they have no bound
    event_bytes_max: int = 1024 * 1024  # one server-sent event
    message_bytes_max: int = 8 * 1024 * 1024  # one WebSocket message
    connections_max: int = 256  # per door
    idle_s: float = 75.0  # between two requests on one connection
    head_s: float = 15.0  # from the first byte of a request to the end of its head
    stall_s: float = 30.0  # without progress of a body, in either direction
    keepalive_s: int = 60  # of silence, before a client is asked whether its end of the connection still exists
    connect_s: float = 5.0  # to the upstream
    response_s: float = 120.0  # from the request to the head of its response
    outside_s: float = 30.0  # from a question to a host outside of the world to the end of its answer
    outside_bytes_max: int = 16 * 1024 * 1024  # of such a question's body, and of its answer's: both are held whole
    url_chars_max: int = 2048  # of a URL in the journal
