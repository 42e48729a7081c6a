"""Children of any moment. One that nobody sealed is made in the first of them, and given to the others.

What these show then is compared with what the first shows: ``made.copied_from`` of each says which way was taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec

from statefork.adapters.interfaces.environment import Environment, Standing
from statefork.engine.collect import Counted, nobody_counts
from statefork.engine.errors import (
    ActionFailed,
    ActionTimeout,
    Diverged,
    GenerationPruned,
    NotReady,
    PartialFork,
    UnknownRef,
)
from statefork.engine.kernel import BulkResult, Kernel
from statefork.engine.ports import Blobs
from statefork.engine.refs import Ref, nearest, parse_ref, resolve
from statefork.journal.errors import StateforkError
from statefork.journal.log import Journal
from statefork.journal.values import Moment, Observation
from statefork.replay.materialise import go_on, materialise, ways
from statefork.replay.rollout import record
from statefork.replay.sameness import alike
from statefork.replay.stage import Progress, nobody_watches
from statefork.replay.verdict import RolloutResult

RETIRE_TIMEOUT_S = 30.0
TRIES = 4
"""How often a moment is looked for again where the generation that was found is pruned before it is used."""


class Forks:
    """The forks of one engine (see :meth:`statefork.adapters.interfaces.python.Engine.fork`)."""

    def __init__(self, kernel: Kernel, journal: Journal, blobs: Blobs) -> None:
        self._kernel = kernel
        self._journal = journal
        self._blobs = blobs
        self._locks: dict[str, anyio.Lock] = {}
        self._holders: Counter[str] = Counter()

    async def fork(
        self,
        ref: Ref,
        children: Sequence[str] | int,
        *,
        key: str | None,
        progress: Progress = nobody_watches,
        count: Counted = nobody_counts,
        helps: str = "",
    ) -> list[Environment]:
        """Children, by their names or how many, that continue from a moment. ``helps``: see ``Kernel.fork``.

        ``progress`` tells of the steps that are done again, ``count`` of the children.
        """
        await self._kernel.find(ref.env)
        exact, born = await self._founded(ref, children, key, helps, count)
        if not exact:
            await self._bring(ref, born, progress, count, key)
        return born

    async def _founded(
        self, ref: Ref, children: Sequence[str] | int, key: str | None, helps: str, count: Counted
    ) -> tuple[bool, list[Environment]]:
        """Children of the moment, or of the nearest generation before it; whether they are at the moment itself."""
        for left in range(TRIES - 1, -1, -1):
            standing = None if ref.is_now else nearest(ref, self._kernel.histories())
            exact = standing is None or standing.exact
            source = ref.env if standing is None else standing.moment
            asked = "" if ref.is_now else str(ref)
            try:
                results = await self._kernel.fork(
                    source, children, activate=exact, key=key, asked=asked, helps=helps, count=count
                )
                return exact, self._born(ref, results)
            except GenerationPruned:  # it went between two looks
                if ref.is_now or not left:
                    raise
        raise AssertionError("the last try raises")

    @asynccontextmanager
    async def standing(self, ref: Ref, progress: Progress = nobody_watches) -> AsyncIterator[Standing]:
        """A generation that holds what a moment of the past held, as long as the body runs.

        Where none stands there, a child is made of it, and retired afterwards. Raises UnknownRef, Diverged.
        """
        await self._kernel.find(ref.env)
        there = nearest(ref, self._kernel.histories())
        if there.exact:
            yield Standing(moment=there.moment)
            return
        async with self.child_name(ref.env) as name:
            try:
                (child,) = await self.fork(ref, (name,), key=None, progress=progress, helps=f"making {ref}")
            except Diverged as error:
                raise _looked_at(error, ref) from None
            moment = await child.snapshot()
            made = child.made
            yield Standing(moment=moment, made=made and msgspec.structs.replace(made, ref=""))  # which ends with it

    @asynccontextmanager
    async def standing_both(self, one: Ref, other: Ref) -> AsyncIterator[tuple[Standing, Standing]]:
        """The same of two moments of the past.

        Where nobody published either, and one leads to the other, the later one is made by going on from the earlier:
        then they differ in what was done between them, and not in when they were made.
        """
        ordered = await self._one_line(one, other)
        if ordered is None:
            async with self.standing(one) as first, self.standing(other) as second:
                yield first, second
            return
        earlier, later = ordered
        async with self.standing(earlier) as before:
            after = before if earlier == later else await self._gone_on(before, earlier, later)
            yield (before, after) if earlier == one else (after, before)

    async def _one_line(self, one: Ref, other: Ref) -> tuple[Ref, Ref] | None:
        """Both, the earlier first; None where they are to be made apart, or need not be made."""
        for ref in (one, other):
            await self._kernel.find(ref.env)
            if nearest(ref, self._kernel.histories()).exact:
                return None
        first, second = await ways(self._kernel, self._journal, one, other)
        if second.goes_on_from(first):
            return one, other
        return (other, one) if first.goes_on_from(second) else None

    async def _gone_on(self, before: Standing, earlier: Ref, later: Ref) -> Standing:
        assert before.made is not None, "nobody published it"
        child = before.moment.env
        made = await go_on(self._kernel, self._journal, self._blobs, before.made, earlier, later, child)
        if made.divergence is not None:
            raise _looked_at(_diverged(later, made, left=False), later)
        return Standing(moment=await self._kernel.publish_changes(child), made=made)

    @asynccontextmanager
    async def child_name(self, env: str) -> AsyncIterator[str]:
        """A free name for a child of an environment that helps. It is retired when the body ends."""
        name = await self._kernel.promise(env, "d")
        try:
            yield name
        finally:
            await self.take_back(name)

    async def lend(self, ref: Ref, helps: str, progress: Progress = nobody_watches) -> Environment:
        """A child of a moment, for the use of one command: to be given back by ``take_back``."""
        name = await self._kernel.promise(ref.env, "d")
        try:
            (child,) = await self.fork(ref, (name,), key=None, progress=progress, helps=helps)
        except BaseException as error:
            await self.take_back(name)
            if isinstance(error, Diverged):
                raise _looked_at(error, ref) from None
            raise
        return child

    async def take_back(self, name: str) -> None:
        """Retire a child that was made for a while, if it is there; never one that somebody else gave the name."""
        with anyio.move_on_after(RETIRE_TIMEOUT_S, shield=True), suppress(StateforkError):
            child = self._kernel.environments.get(name)
            if child is not None and child.helps:
                await self._kernel.retire(name)
        self._kernel.let_go(name)

    def _born(self, ref: Ref, results: Sequence[BulkResult]) -> list[Environment]:
        failed = {result.env: result.error for result in results if result.error is not None}
        names = [result.env for result in results if result.error is None]
        born = [Environment(self._kernel, self._blobs, name, self) for name in names]
        if failed and len(results) == 1:
            raise next(iter(failed.values()))
        if failed:
            raise PartialFork(str(ref), [child.name for child in born], failed)
        return born

    async def _bring(
        self, ref: Ref, children: Sequence[Environment], progress: Progress, count: Counted, key: str | None
    ) -> None:
        """Bring children, forked of the nearest generation before it, to a moment; those that are there stay.

        Raises Diverged, leaving the first child and retiring the others; PartialFork where it went otherwise in one of
        the others, which is retired. What else fails retires all, unless the command has a ``key``: given again it goes
        on then.
        """
        first, *others = children
        async with self._alone(first.name):
            if self._kernel.led_to(key) is not None:  # they are there, and may have gone on since, or have ended
                return
            failed: dict[str, StateforkError] = {}
            try:
                first.made = made = await self._make(ref, first, progress)
                if made.divergence is None:
                    failed = await self._give(ref, first, others, count)
                    first.made = await self._named(made)
            except BaseException:
                if key is None:
                    await self._retire(children)
                raise
            if made.divergence is not None:
                await self._retire(others)
                raise _diverged(ref, made)
            if failed:
                raise PartialFork(str(ref), [child.name for child in children if child.name not in failed], failed)
            if key is not None:
                await self._kernel.done(key, first.name)

    async def _make(self, ref: Ref, child: Environment, progress: Progress = nobody_watches) -> RolloutResult:
        return await materialise(self._kernel, self._journal, self._blobs, ref, child.name, progress=progress)

    async def _named(self, made: RolloutResult) -> RolloutResult:
        """The same with a name of the moment in the child that lasts: that of a generation, where one stands there.

        A request that no action caused has no number. Where the moment ends with one it is published, to have a name.
        """
        if not made.ref:
            return msgspec.structs.replace(made, ref=str(await self._kernel.publish_changes(made.child)))
        with suppress(UnknownRef, GenerationPruned):
            stands = resolve(parse_ref(made.ref), self._kernel.histories())
            return msgspec.structs.replace(made, ref=str(stands))
        return made

    async def _give(
        self, ref: Ref, first: Environment, others: Sequence[Environment], count: Counted
    ) -> dict[str, StateforkError]:
        """What the first child holds, to the others, which are parked; those that failed, which are retired.

        A page may hold what no snapshot carries. So each is looked at: one that does not look like the first is made as
        that was, by doing the recorded actions again in it.
        """
        failed: dict[str, StateforkError] = {}
        if not others:
            return failed
        sealed = await first.snapshot()
        looked = await self._look(first)
        limiter = anyio.CapacityLimiter(self._kernel.settings.parallel_max)
        broken: list[BaseException] = []
        given = 0

        async def give(other: Environment) -> None:
            nonlocal given
            try:
                async with limiter:
                    other.made = await self._given(ref, first, other, sealed, looked)
                    if other.made.divergence is not None:
                        await self._retire([other])
                        failed[other.name] = _diverged(ref, other.made, left=False)
            except Exception as error:  # noqa: BLE001 - raised again below, alone
                broken.append(error)
            given += 1
            count(1 + given, 1 + len(others))

        async with anyio.create_task_group() as tasks:
            for other in others:
                tasks.start_soon(give, other)
        if broken:
            raise broken[0]
        return failed

    async def _given(
        self, ref: Ref, first: Environment, other: Environment, sealed: Moment, looked: Observation | None
    ) -> RolloutResult:
        await other.restore(sealed)
        seen = await self._look(other)
        same = looked is None if seen is None else looked is not None and self._alike(looked, seen)
        if not same:
            made = await self._make(ref, other)
            return made if made.divergence is not None else await self._named(made)
        assert first.made is not None
        copied = msgspec.structs.replace(first.made, child=other.name, copied_from=first.name, ref=str(other.ref))
        await record(self._journal, copied)
        return copied

    def _alike(self, one: Observation, other: Observation) -> bool:
        return alike(one, other, self._kernel.contract.masks, self._blobs.get)

    async def _look(self, child: Environment) -> Observation | None:
        """What is to be seen in a child; None where there is nothing through which to look, or it does not answer."""
        with suppress(NotReady, ActionTimeout, ActionFailed):
            return await self._kernel.observe(child.name)
        return None

    @asynccontextmanager
    async def _alone(self, child: str) -> AsyncIterator[None]:
        """One after the other: a command may be repeated while its first try is under way."""
        self._holders[child] += 1
        try:
            async with self._locks.setdefault(child, anyio.Lock()):
                yield
        finally:
            self._holders[child] -= 1
            if not self._holders[child]:
                del self._holders[child], self._locks[child]

    async def _retire(self, children: Sequence[Environment]) -> None:
        with anyio.CancelScope(shield=True):
            for child in children:
                with suppress(StateforkError):
                    await child.retire()


def _looked_at(error: Diverged, ref: Ref) -> Diverged:
    """Of a child that is retired."""
    error.hint = f"To look at how it went: statefork fork '{ref}'"
    return error


def _diverged(ref: Ref, made: RolloutResult, *, left: bool = True) -> Diverged:
    """``left``: the child is there, to be looked at."""
    found = made.divergence
    assert found is not None
    look = f"{made.child} is left as it was then: `statefork show {made.child}`; retire it when you have looked"
    error = Diverged(
        f"{ref} could not be made again: {found.step} from {made.source} went otherwise: {found.what}",
        hint=look if left else f"In another child it went as recorded. To look at it: statefork fork '{ref}'",
        environment=ref.env,
        child=made.child,
        action=found.number,
        source=str(made.source),
    )
    error.result = made
    return error
