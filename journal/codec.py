"""Events as bytes, and the chain that makes a changed byte visible.

The bytes are JSON that people can read and SQL can query: the tag first, then the fields in the order of their
declaration, the keys of inner mappings sorted. One event has one form. Stored bytes are never rewritten: an event of an
older version is lifted by an *upcaster* each time it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from statefork.journal.errors import EventInvalid, JournalCorrupt
from statefork.journal.events import Event

Tails = dict[str, tuple[int, str]]
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

GENESIS = "0" * 64
"""What the first event of a stream has as its previous hash."""

UPCASTERS: dict[str, Upcaster] = {}
"""By tag: how an event of an older version becomes one of a newer version (another tag). None is needed yet."""

_STEPS_MAX = 64
_TAG_PREFIX = b'{"type":"'


def link(previous: str, stream: str, version: int, data: bytes) -> str:
    """The hash (SHA-256, hex) of an event in its place: it covers the previous hash of the stream and so all before."""
    return sha256(f"{previous}\n{stream}\n{version}\n".encode() + data).hexdigest()


def digest_of_heads(heads: Iterable[tuple[str, int, str]]) -> str:
    """SHA-256 (hex) of streams with version and hash of their last events, sorted by the streams' names."""
    digest = sha256()
    for stream, version, last in heads:
        digest.update(f"{stream} {version} {last}\n".encode())
    return digest.hexdigest()


class Codec:
    """Encodes and decodes the events of one vocabulary."""

    def __init__(self, upcasters: Mapping[str, Upcaster] = UPCASTERS, vocabulary: Any = Event) -> None:
        self._upcasters = upcasters
        self._vocabulary = vocabulary
        self._encoder = msgspec.json.Encoder(order="deterministic")
        self._decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(vocabulary)

    def encode(self, event: Event) -> bytes:
        """The bytes of an event, proved to be readable: they are those of the event that reading gives.

        Raises EventInvalid. (A not-a-number inside free JSON becomes null, for JSON has none.)
        """
        try:
            return self._encoder.encode(self._decoder.decode(self._encoder.encode(event)))
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise self._invalid(event, str(error)) from error

    def decode(self, data: bytes, *, position: int = 0) -> Event:
        """The event, lifted to the newest version that this vocabulary knows. Raises JournalCorrupt."""
        try:
            if not self._upcasters or self._is_current(data):
                return self._decoder.decode(data)
            return self._lift(msgspec.json.decode(data, type=dict[str, Any]))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise JournalCorrupt(
                f"The event at position {position} can't be decoded: {error}",
                hint="If a newer statefork wrote it, upgrade; else restore the file from a copy. Nothing was changed",
                position=position,
            ) from error

    def _is_current(self, data: bytes) -> bool:
        tag = _leading_tag(data)
        return tag is not None and tag not in self._upcasters

    def _lift(self, raw: dict[str, Any]) -> Event:
        for _ in range(_STEPS_MAX):
            upcaster = self._upcasters.get(raw["type"])
            if upcaster is None:
                event: Event = msgspec.convert(raw, self._vocabulary)
                return event
            raw = upcaster(raw)
        raise ValueError(f"more than {_STEPS_MAX} upcasters in a row: do they form a circle?")

    @staticmethod
    def _invalid(event: Event, why: str) -> EventInvalid:
        kind = type(event).__name__
        return EventInvalid(
            f"This {kind} can't be written: {why}",
            hint="Events carry finite numbers, valid Unicode text, lists and mappings with text keys",
            event=kind,
        )


def _leading_tag(data: bytes) -> str | None:
    """The tag, if the bytes begin with it, as all that we wrote do."""
    if not data.startswith(_TAG_PREFIX):
        return None
    end = data.find(b'"', len(_TAG_PREFIX))
    return data[len(_TAG_PREFIX) : end].decode() if end > 0 else None


class Chain:
    """Checks events in position order: no hole in any stream, every hash fits.

    ``before(stream, version)`` tells the hash of the event before the first one seen of a stream; it is asked once for
    each stream, and only where reading begins in the middle. ``tails`` has version and hash of the last event checked
    of each stream.
    """

    def __init__(self, before: Callable[[str, int], str | None]) -> None:
        self._before = before
        self.tails: Tails = {}

    def check(
        self, position: int, stream: str, version: int, data: bytes, digest: str, fresh: Tails | None = None
    ) -> None:
        """Raise JournalCorrupt, naming the position, unless the event continues what was checked so far.

        With ``fresh`` what is new goes there and not into ``tails``, so that who gives up loses nothing.
        """
        tails = self.tails
        known = tails.get(stream) if fresh is None else fresh.get(stream) or tails.get(stream)
        if known is None:
            previous = GENESIS if version == 1 else self._before(stream, version)
            if previous is None:
                raise corrupt(position, f"event {version - 1} of stream {stream!r} before it is missing")
        else:
            last, previous = known
            if version != last + 1:
                raise corrupt(position, f"stream {stream!r} goes from event {last} to event {version}")
        if link(previous, stream, version, data) != digest:
            raise corrupt(position, f"event {version} of stream {stream!r} does not fit its hash")
        (tails if fresh is None else fresh)[stream] = (version, digest)


def corrupt(position: int, what: str) -> JournalCorrupt:
    """The error for damage found at a position; 0 where it is not known which."""
    place, sound = (
        ("", "") if position <= 0 else (f" at position {position}", f"Before position {position} it is sound. ")
    )
    return JournalCorrupt(
        f"The journal is damaged{place}: {what}",
        hint=f"{sound}Restore the file from a copy; nothing was changed",
        position=position,
    )
