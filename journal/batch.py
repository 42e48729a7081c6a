"""What stands between ``append`` and the disk: checked entries, and the rule that gives them their places.

Shared by all backends, so that they can't differ in what they accept or in the order that they give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from statefork.journal.codec import GENESIS, Codec, link
from statefork.journal.errors import ExpectationFailed, JournalError, JournalUnavailable
from statefork.journal.limits import Limits, check_limit, exceed
from statefork.journal.log import ANY, Append, Expected

STREAMS_KNOWN_MAX = 50_000
"""The heads of so many streams are kept at hand (about 300 bytes each); others are looked up when they are needed."""

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
    payloads: Sequence[bytes]


class Entry:
    """One atomic append on its way to the disk, and what became of it.

    ``settled`` becomes true on the event loop once ``position`` or ``error`` is final. ``spot`` is for whoever waits.
    """

    __slots__ = ("drafts", "durable", "error", "events", "position", "settled", "size_bytes", "spot")

    def __init__(self, drafts: Sequence[Draft] = (), *, durable: bool, events: int = 0, size_bytes: int = 0) -> None:
        self.drafts = drafts
        self.durable = durable  # somebody waits for the disk
        self.events = events
        self.size_bytes = size_bytes
        self.position = 0
        self.settled = False
        self.error: JournalError | None = None
        self.spot: object = None


def prepare(appends: Sequence[Append], codec: Codec, limits: Limits, *, durable: bool) -> Entry:
    """Check and encode an append. Raises LimitExceeded, EventInvalid; ValueError where the caller is at fault.

    Every append passes here, on the event loop: so limits are compared first, and words are found only for an error.
    """
    count = 0
    for append in appends:
        count += len(append.events)
    if not count:
        raise ValueError("an append needs at least one event")
    if count > limits.append_events_max:
        exceed("append_events_max", count, limits.append_events_max, "Events in one append", "Split it")
    if len(appends) > limits.append_streams_max:
        exceed("append_streams_max", len(appends), limits.append_streams_max, "Streams in one append", "Split it")
    drafts: list[Draft] = []
    size = 0
    for append in appends:
        stream, expected = append.stream, append.expected
        if not durable and expected != ANY:
            raise ValueError("an append that is not durable can't expect anything: nobody would learn of the failure")
        if len(stream) > limits.stream_chars_max:
            what, hint = "Characters of a stream's name", "Use a shorter name"
            exceed("stream_chars_max", len(stream), limits.stream_chars_max, what, hint)
        if not (_plain(stream) or _STREAM.fullmatch(stream)):
            raise ValueError(f"a stream's name is text without spaces or control characters, not {stream!r}")
        payloads: list[bytes] = []
        for event in append.events:
            data = codec.encode(event)
            if len(data) > limits.event_bytes_max:
                what, hint = f"Bytes of {type(event).__name__} for stream {stream!r}", "Store a blob, keep its digest"
                exceed("event_bytes_max", len(data), limits.event_bytes_max, what, hint)
            size += len(data)
            payloads.append(data)
        drafts.append(Draft(stream, expected, payloads))
    if size > limits.append_bytes_max:
        exceed("append_bytes_max", size, limits.append_bytes_max, "Bytes of one append", "Split it")
    return Entry(drafts, durable=durable, events=count, size_bytes=size)


def _plain(stream: str) -> bool:
    """Most names are, and this is faster than a regular expression."""
    return stream.isascii() and stream.isprintable() and stream != "" and " " not in stream


class Load:
    """What is queued and not yet on disk, against its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.events = 0
        self.size_bytes = 0
        self.waiters = 0

    def add(self, entry: Entry, fault: JournalError | None) -> None:
        """Count an entry in. Raises LimitExceeded, and then nothing is counted; ``fault`` is the disk's, if any."""
        limits = self._limits
        events, size, waiters = self.events + entry.events, self.size_bytes + entry.size_bytes, self.waiters
        if entry.durable:
            waiters += 1
        if events > limits.queue_events_max or size > limits.queue_bytes_max or waiters > limits.waiters_max:
            hint = f"The disk does not keep up{f' ({fault.message})' if fault else ''}: wait, or free space"
            check_limit("queue_events_max", events, limits.queue_events_max, "Events queued", hint)
            check_limit("queue_bytes_max", size, limits.queue_bytes_max, "Bytes queued", hint)
            check_limit("waiters_max", waiters, limits.waiters_max, "Tasks that wait for the disk", hint)
        self.events, self.size_bytes, self.waiters = events, size, waiters

    def drop(self, entries: Iterable[Entry]) -> None:
        """Their fate is final."""
        for entry in entries:
            self.events -= entry.events
            self.size_bytes -= entry.size_bytes
            self.waiters -= entry.durable


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

    def unknown(self, streams: Iterable[str]) -> list[str]:
        """Those whose heads would have to be loaded."""
        return [stream for stream in streams if stream not in self._known]

    def learn(self, heads: dict[str, tuple[int, str]]) -> None:
        """Remember heads that were loaded elsewhere."""
        self._known |= heads

    def forget(self, streams: Iterable[str]) -> None:
        """Somebody else may have written to these streams."""
        for stream in streams:
            self._known.pop(stream, None)

    def place(self, entries: Iterable[Entry], after: int) -> Placed:
        """Give each event its position and version, in the order of the entries.

        An entry whose expectation fails takes no place and gets its error; the others are not disturbed. Nothing is
        remembered until ``keep``.
        """
        rows: list[Row] = []
        changed: dict[str, tuple[int, str]] = {}
        position = after
        for entry in entries:
            entry.error = self._refusal(entry, changed)
            if entry.error is not None:
                continue
            for stream, _, payloads in entry.drafts:
                if not payloads:
                    continue
                version, digest = changed.get(stream) or self.get(stream)
                for data in payloads:
                    position += 1
                    version += 1
                    digest = link(digest, stream, version, data)
                    rows.append(Row(position, stream, version, data, digest))
                changed[stream] = (version, digest)
            entry.position = position
        return Placed(rows, changed)

    def _refusal(self, entry: Entry, changed: dict[str, tuple[int, str]]) -> ExpectationFailed | None:
        """The first expectation of an append that does not hold, its own earlier events counted."""
        own: dict[str, int] = {}
        for stream, expected, payloads in entry.drafts:
            if expected is not ANY:
                version = (changed.get(stream) or self.get(stream))[0] + own.get(stream, 0)
                if (error := unexpected(stream, expected, version)) is not None:
                    return error
            own[stream] = own.get(stream, 0) + len(payloads)
        return None

    def keep(self, placed: Placed) -> None:
        """What was placed is on disk: later events go after it."""
        known = self._known
        known |= placed.changed
        while len(known) > STREAMS_KNOWN_MAX:
            del known[next(iter(known))]


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
    """Give each of those who wait an error of its own. On the event loop only."""
    for entry in entries:
        entry.error = own_copy(error)
        entry.settled = True


Fault = TypeVar("Fault", bound=JournalError)


def own_copy(error: Fault) -> Fault:
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
