"""Many environments by one command: the children of a fork, several creates, several resets.

Each succeeds or fails on its own. No more of them are bound at once than there are slots: what comes beyond them is
published all the same, and bound when it is used. A command with a key that is given again does only what is missing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio

from statefork.engine.capsule import Generation
from statefork.engine.collect import Counted
from statefork.engine.conductor import Conductor
from statefork.engine.errors import (
    EnvironmentExists,
    GenerationPruned,
    LimitReached,
    NoSlot,
    OutOfRange,
    StateforkError,
)
from statefork.engine.holding import checked
from statefork.engine.keyed import Keys, Told
from statefork.engine.policy import Choice
from statefork.engine.provision import Bases
from statefork.engine.refs import check_env_name
from statefork.engine.settings import DrainPolicy
from statefork.engine.slots import UNLIMITED
from statefork.journal.values import Moment, Value


class BulkResult(Value, frozen=True, kw_only=True):
    """One environment of a bulk command: its moment, or why there is none."""

    env: str
    moment: Moment | None = None
    error: StateforkError | None = None


class Bulk:
    """The bulk commands of one kernel."""

    def __init__(self, conductor: Conductor, bases: Bases, keys: Keys) -> None:
        self._conductor = conductor
        self._world = conductor.ledger.world
        self._settings = conductor.settings
        self._bases = bases
        self._keys = keys
        self._promised: set[str] = set()  # names that were given to children who are not in the journal yet

    # ``count`` is called with how many have succeeded or failed, and of how many.

    async def create(
        self, envs: Sequence[str], *, activate: bool, key: str | None, choice: Choice, count: Counted
    ) -> list[BulkResult]:
        """New environments over the contract's bases, for which these policies hold.

        Raises LimitReached, EnvironmentExists (a name given twice), ContractError (no policy).
        """
        self._check_names(envs, "create")
        choice = checked(choice)
        async with self._keys.command(key, "create", *envs, *choice.words()) as told:
            manifest = await self._bases.manifest()

            async def create(env: str, part: int, bind: bool) -> Moment:
                note = told.note(part)
                return await self._conductor.found(env, "create", manifest, activate=bind, note=note, choice=choice)

            return await self._each(envs, self._binding(create, activate), told, count)

    async def reset(
        self, envs: Sequence[str], *, drain: DrainPolicy | None, key: str | None, count: Counted
    ) -> list[BulkResult]:
        """Each back to its origin. Raises LimitReached, EnvironmentExists (a name given twice)."""
        self._check_names(envs, "reset")

        async with self._keys.command(key, "reset", *envs) as told:

            async def reset(env: str, part: int) -> Moment:
                origin = (await self._conductor.known(env)).origin
                return await self._conductor.switch(env, "reset", origin, drain, note=told.note(part))

            return await self._each(envs, reset, told, count)

    async def fork(
        self,
        source: Moment | str,
        children: Sequence[str] | int,
        *,
        activate: bool,
        drain: DrainPolicy | None,
        key: str | None,
        asked: str = "",
        helps: str = "",
        count: Counted,
    ) -> list[BulkResult]:
        """Children of a moment, or of the present (one snapshot for all); a number of them gets free names.

        ``asked``: by what name the caller means the moment, where ``source`` may be another one the next time.
        ``helps``: see ``Conductor.found``.
        """
        n = children if isinstance(children, int) else len(children)
        self.check_many(n, "fork")
        named = () if isinstance(children, int) else tuple(children)
        if named:
            self._check_names(named, "fork")
        wanted = named or (f"n={n}",)
        async with self._keys.command(key, "fork", asked or str(source), *wanted) as told:
            moment = await self._source(source, drain, told, n, to_fork=activate)

            async def bear(env: str, part: int, bind: bool) -> Moment:
                parent = self._parent(moment, told)
                return await self._conductor.found(
                    env,
                    "fork",
                    parent.manifest,
                    source=moment,
                    origin=self._world.capsule(moment.env).origin,
                    actions=parent.actions,
                    activate=bind,
                    note=told.note(part),
                    helps=helps,
                )

            async with self._names(named, moment.env, n, told) as names:
                return await self._each(names, self._binding(bear, activate), told, count)

    async def _source(
        self, source: Moment | str, drain: DrainPolicy | None, told: Told, n: int, *, to_fork: bool
    ) -> Moment:
        """The generation that all children continue from; a repetition finds the one that the first try pinned."""
        if isinstance(source, Moment):
            await self._conductor.ledger.look_up(source.env)
            self._generation(source)
            return source
        return told.whole or await self._conductor.snapshot(source, drain, note=told.note(of=n + 1), to_fork=to_fork)

    def _parent(self, moment: Moment, told: Told) -> Generation:
        try:
            return self._generation(moment)
        except GenerationPruned as error:
            if told.whole:  # by a journal from before such a moment was kept for the command
                error.hint = f"This key can lead to no more children. Give the fork anew, of {moment}, with a new key."
            raise

    def _generation(self, moment: Moment) -> Generation:
        generation = self._world.kept(moment)
        self._conductor.usable(moment.env)
        return generation

    @asynccontextmanager
    async def _names(self, named: tuple[str, ...], parent: str, n: int, told: Told) -> AsyncIterator[tuple[str, ...]]:
        """A name for each child: that which was asked for, that which it has already, or the next free one.

        Nobody else is given them in the body.
        """
        known = {part: moment.env for part, moment in told.parts.items()}
        numbers = itertools.count(1)
        names: list[str] = []
        given: set[str] = set()
        try:
            for part in range(1, n + 1):
                name = named[part - 1] if named else known.get(part) or await self._fresh(parent, "f", numbers)
                names.append(name)
                if name not in self._promised:
                    given.add(name)
                    self._promised.add(name)
            yield tuple(names)
        finally:
            self._promised -= given

    async def promise(self, parent: str, kind: str) -> str:
        """See :meth:`statefork.engine.kernel.Kernel.promise`."""
        name = await self._fresh(parent, kind, itertools.count(1))
        self._promised.add(name)
        return name

    def let_go(self, name: str) -> None:
        """It may be promised again."""
        self._promised.discard(name)

    async def _fresh(self, parent: str, kind: str, numbers: Iterator[int]) -> str:
        while True:
            name = f"{parent}-{kind}{next(numbers)}"
            await self._conductor.ledger.look_up(name)  # another engine that shares the journal may have given it
            taken = (self._world.environments, self._world.elsewhere.names, self._promised)
            if not any(name in names for names in taken):
                return name

    # --- doing many -------------------------------------------------------------------------------------------------

    def _binding(
        self, found: Callable[[str, int, bool], Awaitable[Moment]], activate: bool
    ) -> Callable[[str, int], Awaitable[Moment]]:
        """Bind as many as there are slots; who gets none is founded without, and binds when it is used."""
        limit = self._conductor.seating.slots.limit

        async def one(env: str, part: int) -> Moment:
            if activate and (limit == UNLIMITED or part <= limit):
                try:
                    return await found(env, part, True)
                except NoSlot:
                    pass
            return await found(env, part, False)

        return one

    async def _each(
        self, envs: Sequence[str], work: Callable[[str, int], Awaitable[Moment]], told: Told, count: Counted
    ) -> list[BulkResult]:
        results: dict[int, BulkResult] = {}
        answered = told.parts
        limiter = anyio.CapacityLimiter(self._settings.parallel_max)

        async def one(env: str, part: int) -> None:
            try:
                async with limiter:
                    results[part] = BulkResult(env=env, moment=await work(env, part))
            except StateforkError as error:
                results[part] = BulkResult(env=env, error=error)
            count(len(results), len(envs))

        async with anyio.create_task_group() as tasks:
            for part, env in enumerate(envs, 1):
                if part in answered:
                    results[part] = BulkResult(env=env, moment=answered[part])
                else:
                    tasks.start_soon(one, env, part)
        return [results[part] for part in range(1, len(envs) + 1)]

    # --- limits -----------------------------------------------------------------------------------------------------

    def _check_names(self, envs: Sequence[str], doing: str) -> None:
        self.check_many(len(envs), doing)
        for name, times in Counter(envs).items():
            check_env_name(name)
            if times > 1:
                raise EnvironmentExists(f"{doing}: {name} is named twice", environment=name)

    def check_many(self, number: int, doing: str) -> None:
        """Raises OutOfRange, LimitReached unless one command may concern so many environments."""
        most = self._settings.children_max
        if number < 1:
            raise OutOfRange(f"one {doing} makes at least 1 environment, not {number}", what=doing, asked=number)
        if number > most:
            raise LimitReached(
                f"one {doing} makes 1 to {most} environments, not {number}",
                hint="Give several commands, or raise children_max in the engine's settings.",
                limit="children_max",
                most=most,
                asked=number,
            )
