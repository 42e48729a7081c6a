"""Tickets: the signed proof that a request was admitted for one (environment, epoch, activation).

The gateway signs, the server that owns the key verifies. A ticket opens the bindings of its own environment only, and
only as long as the server holds a binding of the same epoch and activation, so it needs no expiry of its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from statefork.engine.errors import StateforkError
from statefork.journal.values import Identity

TICKET_HEADER = "Statefork-Ticket"
CONDITIONS_HEADER = "Statefork-Conditions"  # beside a ticket: what the request is answered under
LOST_HEADER = "Statefork-Lost"  # in an answer: which store failed, so that what it says is not the application's word
RESERVED_PREFIX = "statefork-"  # no header of a client whose name begins so (in any spelling) passes the gateway
KEY_BYTES = 32
TICKET_CHARS_MAX = 1024

_VERSION = "1"


class TicketRefused(StateforkError):
    """The text is not a ticket that this key signed."""

    code = "ticket_refused"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _data(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _mac(key: bytes, payload: str) -> bytes:
    return hmac.digest(key, f"statefork-ticket/{_VERSION}/{payload}".encode(), hashlib.sha256)


def sign(key: bytes, identity: Identity) -> str:
    """The ticket of an identity. ``key`` has KEY_BYTES bytes."""
    assert len(key) == KEY_BYTES
    payload = _text(msgspec.json.encode([identity.env, identity.epoch, identity.activation]))
    return f"{_VERSION}.{payload}.{_text(_mac(key, payload))}"


def verify(key: bytes, ticket: str) -> Identity:
    """The identity that the ticket proves. Raises TicketRefused; which part was wrong is not told."""
    assert len(key) == KEY_BYTES
    refused = TicketRefused("the request bears no ticket of this server")
    parts = ticket.split(".") if len(ticket) <= TICKET_CHARS_MAX and ticket.isascii() else []
    if len(parts) != 3 or parts[0] != _VERSION:
        raise refused
    try:
        if not hmac.compare_digest(_mac(key, parts[1]), _data(parts[2])):
            raise refused
        env, epoch, activation = msgspec.json.decode(_data(parts[1]), type=tuple[str, int, int])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise refused from None
    return Identity(env=env, epoch=epoch, activation=activation)


def tell_conditions(seed: str, clock: float) -> str:
    """What CONDITIONS_HEADER says: a seed in hex, and what clocks say as the request begins (0: they are real)."""
    return f"{seed};{clock:.6f}" if clock else f"{seed};"


def heard_conditions(text: str) -> tuple[str, float]:
    """The seed and the clock, as they were told; empty and 0.0 where nothing was. Raises ValueError."""
    seed, _, clock = text.partition(";")
    return seed, float(clock or 0)
