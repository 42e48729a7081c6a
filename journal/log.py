"""The journal's protocol. Its rules are proved by the public conformance suite ``statefork.journal.conformance``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

import msgspec

from statefork.journal.checkpoint import Checkpoint
from statefork.journal.errors import ClaimLost
from statefork.journal.events import Event


class Expected(msgspec.Struct, frozen=True):
    """What an append expects of a stream: ``ANY``, ``NO_STREAM``, ``EXISTS`` or exactly ``version`` events so far."""

    kind: str
    version: int = 0


ANY = Expected("any")
NO_STREAM = Expected("exactly", 0)
EXISTS = Expected("exists")


def exactly(version: int) -> Expected:
    """The stream holds exactly ``version`` events."""
    return Expected("exactly", version)


class Append(msgspec.Struct, frozen=True):
    """Events for one stream. Several of these make one atomic append."""

    stream: str
    events: tuple[Event, ...]
    expected: Expected = ANY


class Recorded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event in its place. ``position`` is global, from 1, without holes; ``version`` is per stream, from 1.

    ``hash`` chains the stream: it covers the previous hash of the same stream, stream, version and the event's bytes.
    """

    position: int
    stream: str
    version: int
    event: Event
    hash: str


class Reader(Protocol):
    """Reading is always welcome: also from other processes, also without an engine."""

    @property
    def id(self) -> str:
        """The journal's identity; every handle bears it."""
        ...

    def read(self, *, after: int = 0, stream: str | None = None, limit: int | None = None) -> AsyncIterator[Recorded]:
        """Committed events in position order, beginning after the position ``after``; of one stream if named.

        Raises JournalCorrupt, naming the position, where the chain does not hold.
        """
        ...

    async def head(self) -> int:
        """Position of the last committed event; 0 when empty."""
        ...

    async def stream_version(self, stream: str) -> int:
        """Number of committed events in a stream; 0 when there is no such stream."""
        ...

    async def streams(self) -> Sequence[str]:
        """The names of all streams, sorted."""
        ...

    async def heads_digest(self, *, at: int) -> str:
        """SHA-256 (hex) of the heads of all streams as they stood at a position: one line for each, sorted by name.

        A line is the stream's name, and version and hash of its last event, with a space between.
        """
        ...

    async def checkpoint(self, fold: str) -> Checkpoint | None:
        """The checkpoint last saved of a fold, if it is whole and this journal holds the event it stands behind.

        Else None, and a warning says why if there is one: then fold from the beginning. With one, go on with
        ``read(after=checkpoint.position)``, which verifies what it reads from there, each stream from the stored event
        before. Raises ValueError for a bad name.
        """
        ...


class Journal(Reader, Protocol):
    """One writer's journal: the engine's only durable truth."""

    async def append(self, *appends: Append, durable: bool = True) -> int:
        """Append all or nothing, and return the position of the last event.

        With ``durable`` it returns when the events are on disk. Without, it returns once they are queued behind
        everything appended earlier (and returns 0): they ride along in the next group commit and a crash may cut them
        off the tail, never out of the middle. Riders must expect ANY.
        Raises ExpectationFailed, JournalUnavailable, LimitExceeded.
        """
        ...

    def ride(self, stream: str, *events: Event) -> None:
        """The same as ``append(..., durable=False)``, callable where nothing may be awaited."""
        ...

    async def flush(self) -> int:
        """Wait until everything queued so far is on disk; return the position of the last event of it.

        So a fold that has taken exactly what was queued when ``flush`` was called stands at the position returned.
        """
        ...

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep what a fold gave, in place of the last checkpoint of the same fold; on disk when it returns.

        It is written only once everything up to its position is on disk, so that no crash can put other events there.
        Raises JournalUnavailable (the last one stays), LimitExceeded, ValueError for a position without an event.
        """
        ...

    def subscribe(self, *, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Recorded]]:
        """All committed events after a position, then live ones as they are committed, none missed, none twice."""
        ...


@runtime_checkable
class Shared(Protocol):
    """A journal that several state directories may share, as a reader sees it."""

    async def engines(self) -> Mapping[str, str]:
        """The places whose engines are open now, as far as their claims tell, and which process each of them is."""
        ...


@runtime_checkable
class Remote(Protocol):
    """A journal on a server, which may be out of reach."""

    @property
    def away(self) -> bool:
        """A connection to the server ended, or none is made: what nobody waits for is queued, and may never be kept."""
        ...

    async def reachable(self) -> None:
        """Ask the server, for as long as an append waits for it. Raises JournalUnavailable, ClaimLost."""
        ...


@runtime_checkable
class Fenced(Protocol):
    """A journal from which its writer can be fenced out, when it is taken for dead and somebody else takes over."""

    async def fenced(self) -> ClaimLost:
        """Return when that has happened: every append is refused from then on, with this error."""
        ...
