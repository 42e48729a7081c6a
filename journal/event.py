"""What all events have in common."""

from __future__ import annotations

import msgspec


class Base(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """What all events have: when the engine's clock said it happened.

    ``gc=False``: made of values, an event can't reach itself, and the garbage collector need not look for that.
    """

    at: float
