"""What a journal accepts. Every limit is checked before anything is queued, and its error names it."""

from __future__ import annotations

from typing import NoReturn

import msgspec

from statefork.journal.errors import LimitExceeded


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one open journal.

    The defaults leave room: the longest event of a running engine is a contract's text (tens of KiB); whatever is
    bigger belongs into the blob store and is named by its digest.
    """

    stream_chars_max: int = 200
    event_bytes_max: int = 4 * 1024 * 1024  # of one event, encoded
    append_events_max: int = 1_000  # events in one atomic append
    append_streams_max: int = 1_000  # streams that one atomic append names, also those it only expects something of
    append_bytes_max: int = 16 * 1024 * 1024
    queue_events_max: int = 100_000  # queued and not yet on disk
    queue_bytes_max: int = 64 * 1024 * 1024
    waiters_max: int = 10_000  # tasks that wait for the disk: durable appends and flushes
    subscribers_max: int = 1_000
    batch_events_max: int = 4_096  # events in one group commit; nothing is refused, one atomic append is never split
    checkpoint_bytes_max: int = 1024 * 1024 * 1024


def exceed(name: str, value: int, maximum: int, what: str, hint: str) -> NoReturn:
    """Raise the LimitExceeded that names the limit."""
    message = f"{what}: {value} is more than the limit {name} = {maximum}"
    raise LimitExceeded(message, hint=hint, limit=name, value=value, maximum=maximum)


def check_limit(name: str, value: int, maximum: int, what: str, hint: str) -> None:
    """Raise LimitExceeded, naming the limit, if ``value`` is greater than ``maximum``."""
    if value > maximum:
        exceed(name, value, maximum, what, hint)
