"""What stands between ``append`` and the disk: checked entries, and the rule that gives them their places.

Shared by all backends, so that they can't differ in what they accept or in the order that they give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import anyio

from statefork.journal.codec import GENESIS, Codec, link
from statefork.journal.errors import ExpectationFailed, JournalError, JournalUnavailable
from statefork.journal.limits import Limits, check_limit
from statefork.journal.log import ANY, Append, Expected

_STREAM = re.compile(r"[^\s\x00-\x1f\x7f\ud800-\udfff]+")


class Row(NamedTuple):
    """One event in its place, as it is stored."""

    position: int
    stream: str
    version: int
    event: bytes
    hash: str


class Draft(NamedTuple):
    """The encoded events for one stream of one append."""

    stream: str
    expected: Expected
    payloads: tuple[bytes, ...]


class Entry:
    """One atomic append on its way to the disk, and what became of it.

    ``done`` is set on the event loop once ``position`` or ``error`` is final; riders have none, for nobody waits.
    """

    __slots__ = ("done", "drafts", "error", "events", "position", "size_bytes")

    def __init__(self, drafts: tuple[Draft, ...], *, done: anyio.Event | None) -> None:
        self.drafts = drafts
        self.done = done
        self.events = sum(len(draft.payloads) for draft in drafts)
        self.size_bytes = sum(len(data) for draft in drafts for data in draft.payloads)
        self.position = 0
        self.error: JournalError | None = None

    @property
    def durable(self) -> bool:
        """Somebody waits for the disk."""
        return self.done is not None


def prepare(appends: Sequence[Append], codec: Codec, limits: Limits, *, done: anyio.Event | None) -> Entry:
    """Check and encode an append. Raises LimitExceeded, EventInvalid; ValueError where the caller is at fault."""
    if not any(append.events for append in appends):
        raise ValueError("an append needs at least one event")
    if done is None and any(append.expected != ANY for append in appends):
        raise ValueError("an append that is not durable can't expect anything: nobody would learn of the failure")
    count = sum(len(append.events) for append in appends)
    check_limit("append_events_max", count, limits.append_events_max, "Events in one append", "Split it")
    return Entry(tuple(_draft(append, codec, limits) for append in appends), done=done)


def _draft(append: Append, codec: Codec, limits: Limits) -> Draft:
    stream = append.stream
    hint = "Use a shorter name"
    check_limit("stream_chars_max", len(stream), limits.stream_chars_max, "Characters of a stream's name", hint)
    if not _STREAM.fullmatch(stream):
        raise ValueError(f"a stream's name is text without spaces or control characters, not {stream!r}")
    payloads = tuple(map(codec.encode, append.events))
    for event, data in zip(append.events, payloads, strict=True):
        what = f"Bytes of {type(event).__name__} for stream {stream!r}"
        check_limit("event_bytes_max", len(data), limits.event_bytes_max, what, "Store it as a blob, keep the digest")
    return Draft(stream, append.expected, payloads)


class Heads:
    """The last (version, hash) of every stream, loaded when first needed, and the placing of new events after them."""

    def __init__(self, load: Callable[[str], tuple[int, str] | None]) -> None:
        self._load = load
        self._known: dict[str, tuple[int, str]] = {}

    def get(self, stream: str) -> tuple[int, str]:
        """How many events a stream has, and the hash of the last."""
        head = self._known.get(stream)
        if head is None:
            head = self._known[stream] = self._load(stream) or (0, GENESIS)
        return head

    def place(self, entries: Iterable[Entry], after: int) -> Placed:
        """Give each event its position and version, in the order of the entries.

        An entry whose expectation fails takes no place and gets its error; the others are not disturbed. Nothing is
        remembered until ``keep``.
        """
        rows: list[Row] = []
        changed: dict[str, tuple[int, str]] = {}
        for entry in entries:
            entry.error = None
            mine: dict[str, tuple[int, str]] = {}
            placed: list[Row] = []
            position = after + len(rows)
            for draft in entry.drafts:
                version, digest = mine.get(draft.stream) or changed.get(draft.stream) or self.get(draft.stream)
                entry.error = unexpected(draft.stream, draft.expected, version)
                if entry.error is not None:
                    break
                for data in draft.payloads:
                    position, version = position + 1, version + 1
                    digest = link(digest, draft.stream, version, data)
                    placed.append(Row(position, draft.stream, version, data, digest))
                if draft.payloads:
                    mine[draft.stream] = (version, digest)
            else:
                rows += placed
                changed |= mine
                entry.position = position
        return Placed(rows, changed)

    def keep(self, placed: Placed) -> None:
        """What was placed is on disk: later events go after it."""
        self._known |= placed.changed


class Placed(NamedTuple):
    """The rows of a batch, and the heads of the streams that they change."""

    rows: list[Row]
    changed: dict[str, tuple[int, str]]


def unexpected(stream: str, expected: Expected, version: int) -> ExpectationFailed | None:
    """The error, if a stream with ``version`` events is not what was expected."""
    if expected.kind == "any" or (expected.kind == "exists" and version > 0):
        return None
    if expected.kind == "exactly" and version == expected.version:
        return None
    wanted = "at least one event" if expected.kind == "exists" else f"exactly {expected.version}"
    return ExpectationFailed(
        f"Stream {stream!r} was expected to hold {wanted}, but holds {version}",
        hint="Somebody else wrote to it first: read what is new, decide again",
        stream=stream,
        expected=expected.version if expected.kind == "exactly" else expected.kind,
        actual=version,
    )


def fail(entries: Iterable[Entry], error: JournalError) -> None:
    """Give each of those who wait an error of its own, and wake them. On the event loop only."""
    for entry in entries:
        entry.error = own_copy(error)
        if entry.done is not None:
            entry.done.set()


def own_copy(error: JournalError) -> JournalError:
    """The same error as another object: several tasks raise it, and each adds its own traceback."""
    copy = type(error)(error.message, hint=error.hint, **error.facts)
    copy.__cause__ = error.__cause__ or error
    return copy


def loss(events: int, fault: JournalError | None) -> JournalUnavailable:
    """The error for events that were still queued when the journal closed."""
    why = f": {fault.message}" if fault else ""
    return JournalUnavailable(
        f"The journal was closed with {events} events that could not be written{why}",
        hint="They are the last ones, and nobody waited for them; what was reported as durable is there",
        events=events,
    )
