"""An environment that comes from another journal: its sealed components are made here, and its past is told again.

A founding without staging: begun, then what the adapters make of the components, then the activity, and last one append
that publishes every generation at once (I5). Before that append there is no such environment: a failure, or a crash,
aborts it, and what had been made is discarded, or collected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import anyio
import msgspec

from statefork.engine.commands import Arrive, Found
from statefork.engine.decisions import decide
from statefork.engine.doubts import Doubts
from statefork.engine.ports import Resource
from statefork.engine.refs import check_env_name
from statefork.engine.staging import quietly
from statefork.engine.turns import in_own_task
from statefork.journal.events import Event
from statefork.journal.values import Component, Moment, Sealed

_TOLD_EVENTS_MAX = 500  # in one append: a journal's limits, with room to spare
_TOLD_BYTES_MAX = 4 * 1024 * 1024


class Arrival(ABC):
    """What comes, as far as the engine has to know."""

    contract: str  # digest

    @abstractmethod
    async def unpack(
        self, resources: Mapping[str, Resource], bases: Mapping[str, Component], made: list[Sealed]
    ) -> None:
        """Make the components. Each version goes into ``made`` as soon as it is there: it may have to be taken back."""

    @abstractmethod
    def activity(self) -> Sequence[Event]:
        """What was done, in order, under the new name; leases and activations are 0."""

    @abstractmethod
    def arrive(self, env: str, at: float, required: frozenset[str]) -> Arrive:
        """The command that ends the import, once everything is unpacked."""


class Arrivals(Doubts):
    """Takes environments in."""

    @in_own_task
    async def take_in(self, env: str, arrival: Arrival, bases: Mapping[str, Component]) -> Moment:
        """Found an environment with the past of another. A failure leaves the name free, and nothing behind."""
        now = self.ledger.clock.now
        await self.ledger.look_up(env)
        with self.lives.held(env) as live:
            async with live.lock, self.sharing.shared():
                self._check_open()
                if live.doubt:
                    await self._settle(env, live)
                found = Found(
                    env=env,
                    at=now(),
                    transition=self.ledger.name(env),
                    contract=arrival.contract,
                    how="import",
                    origin=Moment(env=env, generation=1),
                    place=self.ledger.place,
                )
                decide(self.ledger.world.environments.get(env), found)  # or say why not
                await self._begun(live, found)
                made: list[Sealed] = []
                try:
                    await arrival.unpack(self.resources, bases, made)
                    if self.keep is not None:
                        await self.keep()
                    for told in _in_pieces(arrival.activity()):
                        await self.ledger.tell(env, told)
                    await self.ledger.commit(arrival.arrive(env, now(), frozenset(self.contract.order)))
                except BaseException as error:
                    await self._unfound(env, live, None, error)
                    if not live.doubt:
                        await self._take_back(made)
                        await self._forget(env)
                    raise
        return self.ledger.world.capsule(env).moment

    async def _take_back(self, made: Sequence[Sealed]) -> None:
        with anyio.CancelScope(shield=True):
            for sealed in made:
                discard = self.resources[sealed.resource].discard(sealed)
                await quietly(sealed.resource, "discard", discard, self.settings.discard_s)


class Intake:
    """How a kernel takes environments in."""

    def __init__(self, conductor: Arrivals, bases: Callable[[], Awaitable[Mapping[str, Component]]]) -> None:
        self._conductor = conductor
        self._bases = bases

    async def __call__(self, env: str, arrival: Arrival) -> Moment:
        """A new environment, whose past is another journal's. Raises InvalidName, EnvironmentExists, JournalError, and
        what unpacking raises; the name is free then."""
        check_env_name(env)
        return await self._conductor.take_in(env, arrival, await self._bases())


def _in_pieces(events: Sequence[Event]) -> Iterator[list[Event]]:
    piece: list[Event] = []
    size = 0
    for event in events:
        more = len(msgspec.json.encode(event))
        if piece and (len(piece) == _TOLD_EVENTS_MAX or size + more > _TOLD_BYTES_MAX):
            yield piece
            piece, size = [], 0
        piece.append(event)
        size += more
    if piece:
        yield piece
