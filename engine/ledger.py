"""The engine's account: the fold of the journal, and the only way to add to it.

Commands become events against the fold as it is under the stream's lock, and are appended with an exact expectation, so
that a second writer is noticed and never overwritten. Where several engines share the journal, each folds what its own
place has, and of the others the names; a name that two want to give is the one's whose append comes first. After an
append whose reply was lost the ledger reads back what the journal holds and settles (I5): the caller learns whether the
events happened, or is left frozen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import msgspec
from msgspec.structs import replace

from statefork.engine.capsule import Capsule, evolve
from statefork.engine.checkpoint import fold, save
from statefork.engine.commands import Command, Found
from statefork.engine.decisions import decide
from statefork.engine.errors import SETTLE_HINT, InDoubt
from statefork.engine.locks import KeyedLocks
from statefork.engine.ports import Clock
from statefork.engine.stillness import Stillness
from statefork.engine.world import World
from statefork.journal.errors import ClaimLost, ExpectationFailed, JournalError, JournalUnavailable
from statefork.journal.events import Event, activity_stream, control_stream, engine_stream
from statefork.journal.log import ANY, Append, Journal, Remote, exactly

_BACKOFF_S = (0.0, 0.01, 0.05, 0.2, 1.0)


class _Unanswered:
    """Appends that may have been kept, behind a position."""

    def __init__(self, appends: Sequence[Append], after: int) -> None:
        self.appends = appends
        self.after = after
        self.settled = False


class Ledger:
    """The journal and its fold, kept equal."""

    def __init__(self, journal: Journal, world: World, clock: Clock, *, settle_s: float) -> None:
        self.journal = journal
        self.remote = journal if isinstance(journal, Remote) else None
        self.world = world
        self.clock = clock
        self._settle_s = settle_s
        self._locks = KeyedLocks()  # by environment
        self._known = 0  # the highest position that an append was answered with
        self._still = Stillness()
        self._saving = anyio.Lock()  # one checkpoint at a time
        self._asked: dict[str, _Unanswered] = {}  # by stream: what nobody knows the fate of

    @classmethod
    async def load(cls, journal: Journal, clock: Clock, *, settle_s: float, place: str = "") -> Ledger:
        """Fold the journal, from its checkpoint if it has one that fits. Raises JournalCorrupt, IllegalTransition."""
        folded = await fold(journal, place=place)
        ledger = cls(journal, folded.world, clock, settle_s=settle_s)
        ledger._known = folded.position
        ledger._still.events = folded.position - folded.begun
        return ledger

    @property
    def place(self) -> str:
        """The engine's state directory, by its name in a shared journal; empty in one of its own."""
        return self.world.place or ""

    @property
    def owner(self) -> str:
        """What every handle of this engine bears: its place where it shares the journal, else the journal's id."""
        return self.place or self.journal.id

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
                    for command in commands:
                        await self._answered(control_stream(command.env))
                    appends = await self._decided_and_kept(commands, may_ride=may_ride)
                    for append in appends:
                        self._fold(*append.events)

    async def settle(self, env: str) -> bool:
        """Ask what became of an environment's append that is in doubt, and fold it where it was kept: then True.

        Raises JournalUnavailable, ClaimLost where the journal can't say it yet, ExpectationFailed.
        """
        kept = False
        async with self._locked([env]):
            with anyio.CancelScope(shield=True):
                kept = await self._answered(control_stream(env))
        return kept

    async def _answered(self, stream: str) -> bool:
        asked = self._asked.get(stream)
        if asked is None:
            return False
        if self.remote is not None:
            await self.remote.reachable()
        kept = await self._read_back(asked.appends, asked.after)
        if not asked.settled:
            asked.settled = True  # it may be the doubt of two environments, who both ask
            for append in asked.appends if kept else ():
                self._fold(*append.events)
        for append in asked.appends:
            self._asked.pop(append.stream, None)
        return kept

    async def look_up(self, env: str) -> bool:
        """Learn whether another place has a name that no environment here has; True: the journal told something new.

        Raises JournalUnavailable, and ExpectationFailed where this place has such an environment after all.
        """
        world, stream = self.world, control_stream(env)
        if not world.place or env in world.environments:
            return False
        if await self._version(stream) == world.versions.get(env, 0):
            return False
        if not world.learn(env, [recorded.event async for recorded in self.journal.read(stream=stream)]):
            self._still.give_up()
            raise _second_writer(stream)
        place = world.elsewhere.names.get(env)
        if place and place not in world.elsewhere.places:
            async for recorded in self.journal.read(stream=engine_stream(place), limit=1):
                world.apply(recorded.event, recorded)
        return True

    async def _version(self, stream: str) -> int:
        try:
            return await self.journal.stream_version(stream)
        except JournalUnavailable:
            if self.remote is None:
                raise
            await self.remote.reachable()  # waits as an append does
            return await self.journal.stream_version(stream)

    async def _decided_and_kept(self, commands: Sequence[Command], *, may_ride: bool) -> list[Append]:
        while True:
            appends = self._decide(commands)
            try:
                await self._append(appends, may_ride=may_ride)
            except ExpectationFailed:
                founding = [command for command in commands if isinstance(command, Found)]
                if not any([await self.look_up(command.env) for command in founding]):
                    self._still.give_up()
                    raise
                # another engine was quicker to use the name: it has it, or gave it up, and then it is begun anew
                commands = [
                    replace(command, transition=self.name(command.env)) if isinstance(command, Found) else command
                    for command in commands
                ]
            else:
                return appends

    async def _append(self, appends: Sequence[Append], *, may_ride: bool) -> None:
        before = self._known
        try:
            self._known = max(await self.journal.append(*appends), self._known)
        except ClaimLost:  # others fold this place from now on
            self._still.give_up()
            raise
        except (JournalUnavailable, OSError) as error:
            try:
                kept = await self._kept(appends, before, error)
            except ExpectationFailed:
                raise
            except (JournalError, InDoubt):  # the journal may hold what is not folded
                self._still.give_up()
                asked = _Unanswered(appends, before)
                self._asked |= dict.fromkeys((append.stream for append in appends), asked)
                raise
            if not kept:
                if not may_ride:
                    raise
                for append in appends:
                    self.journal.ride(append.stream, *append.events)

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
            if capsule is None and isinstance(command, Found):
                self.world.elsewhere.check_free(env)
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
                        hint=SETTLE_HINT,
                        streams=" ".join(append.stream for append in appends),
                        reason=str(unreadable),
                    ) from error

    async def _read_back(self, appends: Sequence[Append], after: int) -> bool:
        """``after``: a position that was known before the append, so that it can only stand behind it."""
        found = [await self._behind(append, after) for append in appends]
        if not any(found):
            return False
        if found == [[_text(event) for event in append.events] for append in appends]:
            return True
        raise _second_writer(" ".join(append.stream for append in appends))

    async def _behind(self, append: Append, after: int) -> list[bytes]:
        """What stands where the append would; in a stream into which others write beside it, only its own events."""
        found = [one async for one in self.journal.read(after=after, stream=append.stream)]
        if append.expected is ANY:
            wanted = {_text(event) for event in append.events}
            return [text for one in found if (text := _text(one.event)) in wanted]
        return [_text(one.event) for one in found if one.version > append.expected.version]

    async def tell(self, env: str, events: Sequence[Event]) -> None:
        """Journal an environment's activity durably, in one piece, and fold it. Raises JournalUnavailable."""
        with anyio.CancelScope(shield=True):
            async with self._still.moving():
                try:
                    await self.journal.append(Append(stream=activity_stream(env), events=tuple(events), expected=ANY))
                except JournalError:  # perhaps only the reply was lost
                    self._still.give_up()
                    raise
                self._fold(*events)

    def ride(self, env: str, event: Event) -> None:
        """Journal an activity event without waiting, and fold it."""
        self.journal.ride(activity_stream(env), event)
        self._still.count(1)
        self.world.apply(event)

    def ride_engine(self, event: Event) -> None:
        """Journal an event of the engine as a whole without waiting, and fold it."""
        self.journal.ride(engine_stream(self.place), event)
        self._fold(event)

    async def append_engine(self, *events: Event) -> None:
        """The same, durably. Raises JournalUnavailable (nothing happened), InDoubt (nobody knows yet)."""
        append = Append(stream=engine_stream(self.place), events=events, expected=ANY)
        with anyio.CancelScope(shield=True):
            async with self._still.moving():
                await self._answered(append.stream)
                await self._append((append,), may_ride=False)
                self._fold(*events)

    async def settle_engine(self) -> None:
        """Ask what became of an event of the engine that is in doubt. Raises JournalUnavailable while nobody knows."""
        if engine_stream(self.place) in self._asked:
            with anyio.CancelScope(shield=True):
                async with self._still.moving():
                    await self._answered(engine_stream(self.place))


def _second_writer(streams: str) -> ExpectationFailed:
    return ExpectationFailed(
        "another writer added to this journal",
        hint="Close the engine: two of them must not share a state directory.",
        streams=streams,
    )


def _text(event: Event) -> bytes:
    return msgspec.json.encode(event, order="deterministic")


def _after(capsule: Capsule | None, events: Sequence[Event]) -> Capsule | None:
    for event in events:
        capsule = evolve(capsule, event)
    return capsule
