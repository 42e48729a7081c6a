"""The engine's account: the fold of the journal, and the only way to add to it.

Commands become events against the fold as it is under the stream's lock, and are appended with an exact expectation, so
that a second writer is noticed and never overwritten. After an append whose reply was lost the ledger reads back what
the journal holds and settles (I5): the caller learns whether the events happened, or is left frozen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import msgspec

from statefork.engine.capsule import Capsule, World, evolve
from statefork.engine.checkpoint import fold, save
from statefork.engine.commands import Command
from statefork.engine.errors import InDoubt
from statefork.engine.locks import KeyedLocks
from statefork.engine.ports import Clock
from statefork.engine.stillness import Stillness
from statefork.engine.transitions import decide
from statefork.journal.errors import ExpectationFailed, JournalError, JournalUnavailable
from statefork.journal.events import ENGINE_STREAM, ActionBegun, Event, activity_stream, control_stream
from statefork.journal.log import ANY, Append, Journal, exactly

_BACKOFF_S = (0.0, 0.01, 0.05, 0.2, 1.0)


class Ledger:
    """The journal and its fold, kept equal."""

    def __init__(self, journal: Journal, world: World, clock: Clock, *, settle_s: float) -> None:
        self.journal = journal
        self.world = world
        self.clock = clock
        self._settle_s = settle_s
        self._locks = KeyedLocks()  # by environment
        self._known = 0  # the highest position that an append was answered with
        self._still = Stillness()
        self._saving = anyio.Lock()  # one checkpoint at a time

    @classmethod
    async def load(cls, journal: Journal, clock: Clock, *, settle_s: float) -> Ledger:
        """Fold the journal, from its checkpoint if it has one that fits. Raises JournalCorrupt, IllegalTransition."""
        folded = await fold(journal)
        ledger = cls(journal, folded.world, clock, settle_s=settle_s)
        ledger._known = folded.position
        ledger._still.events = folded.position - folded.begun
        return ledger

    @property
    def uncovered(self) -> int:
        """How many events the last checkpoint does not cover."""
        return self._still.events

    async def grown(self, *, events_min: int) -> None:
        """Return when so many events are not covered by a checkpoint."""
        await self._still.reached(events_min)

    async def save_checkpoint(self) -> bool:
        """Keep the fold, so that the next opening goes on from here; False where that is impossible now.

        Appends that wait for the disk are held back for as long as those under way take; nothing else waits.
        Raises JournalUnavailable; the last checkpoint is still there then.
        """
        async with self._saving:
            async with self._still.cut() as still:
                if not still:
                    return False
                image = self.world.image()  # nothing is under way: the fold of everything that is queued so far
                events = self._still.events
                position = await self.journal.flush()
            await save(self.journal, image, position)
            self._still.events -= events
        return True

    def name(self, env: str) -> str:
        """The name of the environment's next transition, unique in the journal: the place where it begins."""
        return f"{env}/{self.world.versions.get(env, 0) + 1}"

    async def commit(self, *commands: Command, may_ride: bool = False) -> None:
        """Decide, append durably in one piece, and fold. Several commands of one environment follow each other.

        Shielded: once the journal has the events, a cancelled caller finds them folded too. With ``may_ride`` events
        that can't be made durable now (a full disk) ride behind whatever is queued: fit for what a crash may forget.
        Raises what ``decide`` raises, ExpectationFailed, JournalUnavailable (nothing happened), InDoubt (nobody knows).
        """
        async with self._locked(sorted({command.env for command in commands})):
            with anyio.CancelScope(shield=True):
                async with self._still.moving():
                    appends = self._decide(commands)
                    await self._append(appends, may_ride=may_ride)
                    for append in appends:
                        self._fold(*append.events)

    async def _append(self, appends: Sequence[Append], *, may_ride: bool) -> None:
        before = self._known
        try:
            self._known = max(await self.journal.append(*appends), self._known)
        except (JournalUnavailable, OSError) as error:
            try:
                kept = await self._kept(appends, before, error)
            except JournalError:  # the journal may hold what is not folded
                self._still.give_up()
                raise
            if not kept:
                if not may_ride:
                    raise
                for append in appends:
                    self.journal.ride(append.stream, *append.events)
        except ExpectationFailed:
            self._still.give_up()
            raise

    def _fold(self, *events: Event) -> None:
        self._still.count(len(events))
        for event in events:
            self.world.apply(event)

    def _decide(self, commands: Sequence[Command]) -> list[Append]:
        from_here: dict[str, Capsule | None] = {}
        events: dict[str, list[Event]] = {}
        for command in commands:
            env = command.env
            capsule = from_here.get(env, self.world.environments.get(env))
            decided = decide(capsule, command)
            events.setdefault(env, []).extend(decided)
            from_here[env] = _after(capsule, decided)
        return [
            Append(stream=control_stream(env), events=tuple(found), expected=exactly(self.world.versions.get(env, 0)))
            for env, found in events.items()
        ]

    @asynccontextmanager
    async def _locked(self, envs: Sequence[str]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for env in envs:  # sorted by the caller, so that two commits never wait for each other
                await stack.enter_async_context(self._locks.holding(env))
            yield

    async def _kept(self, appends: Sequence[Append], after: int, error: Exception) -> bool:
        """Whether the journal holds the events after all. Raises InDoubt when it can't be read either."""
        give_up = anyio.current_time() + self._settle_s
        attempt = 0
        while True:
            await anyio.sleep(_BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            attempt += 1
            try:
                return await self._read_back(appends, after)
            except ExpectationFailed:
                raise
            except (JournalError, OSError) as unreadable:
                if anyio.current_time() >= give_up:
                    raise InDoubt(
                        "an append got no answer and the journal can't be read back",
                        hint="Close the engine and open the state directory again: recovery settles it.",
                        streams=" ".join(append.stream for append in appends),
                        reason=str(unreadable),
                    ) from error

    async def _read_back(self, appends: Sequence[Append], after: int) -> bool:
        """``after``: a position that was known before the append, so that it can only stand behind it."""
        found = [
            [
                _text(recorded.event)
                async for recorded in self.journal.read(after=after, stream=append.stream)
                if recorded.version > append.expected.version
            ]
            for append in appends
        ]
        if not any(found):
            return False
        if found == [[_text(event) for event in append.events] for append in appends]:
            return True
        raise ExpectationFailed(
            "another writer added to this journal",
            hint="Close the engine: two of them must not share a state directory.",
            streams=" ".join(append.stream for append in appends),
        )

    def ride(self, env: str, event: Event) -> None:
        """Journal an activity event without waiting, and fold it."""
        self.journal.ride(activity_stream(env), event)
        self._still.count(1)
        if isinstance(event, ActionBegun):
            self.world.apply(event)

    def ride_engine(self, event: Event) -> None:
        """Journal an event of the engine as a whole without waiting, and fold it."""
        self.journal.ride(ENGINE_STREAM, event)
        self._fold(event)

    async def append_engine(self, *events: Event) -> None:
        """The same, durably."""
        with anyio.CancelScope(shield=True):
            async with self._still.moving():
                try:
                    await self.journal.append(Append(stream=ENGINE_STREAM, events=events, expected=ANY))
                except JournalError:  # perhaps only the reply was lost
                    self._still.give_up()
                    raise
                self._fold(*events)


def _text(event: Event) -> bytes:
    return msgspec.json.encode(event, order="deterministic")


def _after(capsule: Capsule | None, events: Sequence[Event]) -> Capsule | None:
    for event in events:
        capsule = evolve(capsule, event)
    return capsule
