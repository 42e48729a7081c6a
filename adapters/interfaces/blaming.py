"""Blame: which action last changed a row, a file, a key.

First the generations there are, from the moment back to the origin, two neighbours at a time. Between the two that
differ in it, the recorded steps are done again in a child, each of which is published, and the last that changed it is
looked for there. (Halving the stretch would do: but it would find *a* change, not the last one, and a moment in the
middle is made by doing all before it again.)
"""

from __future__ import annotations

from contextlib import aclosing
from itertools import pairwise
from typing import Any

from statefork.adapters.interfaces.comparing import Comparing
from statefork.engine.capsule import Generation
from statefork.engine.errors import ContractError
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs, Change
from statefork.engine.refs import Ref, moment_ref, nearest
from statefork.journal.log import Journal
from statefork.journal.values import Moment
from statefork.replay.blame import Blame, Wanted, aside, names_of, ref_after, told
from statefork.replay.covering import covered
from statefork.replay.lineage import Past, Step, Witnessed, steps_to, trajectory
from statefork.replay.retrace import retrace
from statefork.replay.stage import Progress, nobody_watches
from statefork.replay.way import Way

Steps = list[tuple[Step, Witnessed]]
Hit = tuple[str, Change]
"""In which resource, and what."""


class Blaming:
    """Looks for who changed what in one engine (see :meth:`statefork.adapters.interfaces.python.Engine.blame`)."""

    def __init__(self, kernel: Kernel, journal: Journal, blobs: Blobs, comparing: Comparing) -> None:
        self._kernel = kernel
        self._journal = journal
        self._blobs = blobs
        self._comparing = comparing

    async def blame(
        self, ref: Ref, wanted: Wanted, progress: Progress = nobody_watches, *, thorough: bool = False
    ) -> Blame:
        """See :meth:`statefork.adapters.interfaces.python.Engine.blame`."""
        await self._kernel.find(ref.env)
        resources = self._resources(wanted)
        if ref.is_now:
            async with self._comparing.standing(ref) as present:
                ref = moment_ref(present.moment)
        standing = nearest(ref, self._kernel.histories()).moment
        known = await self._comparing.pasts(ref)
        search = _Search(ref.env, wanted, resources, known, progress)
        steps = Way(ref, self._kernel.world, known).rest(standing)
        if steps:
            found = await self._within(search, standing, None, steps, None)
            if found is not None:
                return found
        kept = (one for one in self._kernel.world.lineage(standing) if not one.pruned)
        for newer, older in pairwise(kept):
            hit = await self._hit(search, older.moment, newer.moment)
            if hit is not None:
                return await self._between(search, older, newer, hit)
            if thorough and self._written(search, older, newer):
                found = await self._within(search, older.moment, None, search.steps(older, newer), None)
                if found is not None:
                    return found
        return search.blame(None)

    def _written(self, search: _Search, older: Generation, newer: Generation) -> bool:
        """Whether the thing may have been changed there and back: several steps, and something was written."""
        versions = [{name: one.manifest[name].sealed.version for name in search.resources} for one in (older, newer)]
        return versions[0] != versions[1] and len(search.steps(older, newer)) > 1

    def _resources(self, wanted: Wanted) -> tuple[str, ...]:
        """Where to look. Raises ContractError where the contract has nothing of the sort."""
        there = self._kernel.contract.resources
        if wanted.resource is not None:
            if wanted.resource not in there:
                raise ContractError(
                    f"the contract has no resource {wanted.resource!r}; it has {', '.join(there)}", key=wanted.resource
                )
            return (wanted.resource,)
        found = tuple(name for name, spec in there.items() if not wanted.adapters or spec.adapter in wanted.adapters)
        if not found:
            raise ContractError(
                f"the contract has no resource of the kind {' or '.join(sorted(wanted.adapters))}",
                hint="Name one with its resource",
            )
        return found

    async def _hit(self, search: _Search, before: Moment, after: Moment) -> Hit | None:
        """Where the thing differs between two generations, and how."""
        async with self._comparing.read(before, after) as (old, new):
            for name in search.resources:
                async with aclosing(self._comparing.changes(name, old[name], new[name])) as changes:
                    async for change in changes:
                        if change.name in search.wanted.names:
                            return name, change
        return None

    async def _between(self, search: _Search, older: Generation, newer: Generation, hit: Hit) -> Blame:
        """The step between two neighbours that made the difference."""
        steps = search.steps(older, newer)
        if not steps:
            return search.blame(
                hit, ref=str(newer.moment), why=f"no recorded action led to {newer.moment} ({newer.op})"
            )
        if len(steps) == 1:
            return self._by(search, hit, older.moment, steps)
        found = await self._within(search, older.moment, newer.moment, steps, hit)
        assert found is not None, "the two generations differ in it"
        return found

    async def _within(
        self, search: _Search, start: Moment, end: Moment | None, steps: Steps, whole: Hit | None
    ) -> Blame | None:
        """Do the steps again and look after each; ``whole`` is what they did together, where that is known."""
        async with self._comparing.child_name(search.env) as child:
            (born,) = await self._kernel.fork(start, (child,), activate=False, helps=f"blame of {search.env}")
            if born.error is not None:
                raise born.error
            made = await retrace(
                self._kernel, self._journal, self._blobs, start, steps, child, progress=search.progress
            )
            done = max(len(made.moments) - 1, 0)
            search.redone += done
            found = await self._last(search, made.moments)
            left = await self._hit(search, made.moments[-1], end) if end is not None and made.moments else None
        if end is None:
            return self._of_open_end(search, start, steps, done, found, made.why)
        assert whole is not None, "who knows the end knows that it differs"
        if left is not None and done == len(steps):
            search.aside = aside(whole[1], left[1])
        reached = left is None or bool(search.aside)
        return self._of_known_end(search, start, steps, done, found, left or whole, made.why, reached=reached)

    def _of_open_end(
        self, search: _Search, start: Moment, steps: Steps, done: int, found: tuple[int, Hit] | None, why: str
    ) -> Blame | None:
        """Nothing but the steps is known: what could not be done may have changed it."""
        if done < len(steps):
            first, hit = found if found is not None else (done, None)
            return self._doubt(search, hit, start, steps[first:], why)
        if found is None:
            return None
        return self._by(search, found[1], start, steps[found[0] :], certain=not why, why=why)

    def _of_known_end(
        self,
        search: _Search,
        start: Moment,
        steps: Steps,
        done: int,
        found: tuple[int, Hit] | None,
        hit: Hit,
        why: str,
        *,
        reached: bool,
    ) -> Blame:
        """What the steps led to is known, too. ``reached``: the thing is as it was then after those that were done."""
        rest = steps[done:]
        if not reached and rest:
            if len(rest) == 1:
                return self._by(search, hit, start, rest)
            return self._doubt(search, hit, start, rest, why)
        if not reached or found is None:
            return self._doubt(search, hit, start, steps, why or "done again, the steps left something else")
        at, hit = found
        # one step that left it as it was before has not changed it; several may have changed it there and back
        certain = not why or len(rest) == 1
        return self._by(search, hit, start, steps[at:], certain=certain, why="" if certain else why)

    async def _last(self, search: _Search, moments: tuple[Moment, ...]) -> tuple[int, Hit] | None:
        """The last step that changed the thing, by its place, and how."""
        for at in range(len(moments) - 1, 0, -1):
            if moments[at] != moments[at - 1]:
                hit = await self._hit(search, moments[at - 1], moments[at])
                if hit is not None:
                    return at - 1, hit
        return None

    def _by(
        self, search: _Search, hit: Hit, start: Moment, steps: Steps, *, certain: bool = True, why: str = ""
    ) -> Blame:
        """The first of the steps did it; if that is not certain, it was one of them."""
        facts = told(*steps[0])
        between = () if certain else names_of(steps)
        ref = self._ref(search, start, steps[0])
        return search.blame(hit, ref=ref, certain=certain, between=between, why=why, **facts)

    def _doubt(self, search: _Search, hit: Hit | None, start: Moment, steps: Steps, why: str) -> Blame:
        """It was one of the steps; ``ref`` is the moment after them."""
        ref = self._ref(search, start, steps[-1])
        return search.blame(hit, ref=ref, certain=False, between=names_of(steps), why=why)

    def _ref(self, search: _Search, start: Moment, done: tuple[Step, Witnessed]) -> str:
        """The moment after a step, by the environment in which it was done, or that asked about if it helped."""
        number = int(str(told(*done)["number"]))
        env = search.env if self._kernel.world.capsule(start.env).helps else start.env
        if any(one.position == done[1].position for one in trajectory(search.known, env).witnessed):
            return f"{env}#{number}"
        return ref_after(start, self._kernel.world.generation(start).actions, number)


class _Search:
    """What is looked for, where, and what it took."""

    def __init__(
        self, env: str, wanted: Wanted, resources: tuple[str, ...], known: dict[str, Past], progress: Progress
    ) -> None:
        self.env = env
        self.wanted = wanted
        self.resources = resources
        self.known = known
        self.progress = progress
        self.redone = 0
        self.aside: tuple[str, ...] = ()

    def steps(self, older: Generation, newer: Generation) -> Steps:
        """What was done from one generation to a later one of its lineage; nothing where that is a copy of it."""
        return steps_to(self.known, newer.moment)[len(steps_to(self.known, older.moment)) :]

    def blame(self, hit: Hit | None, **facts: Any) -> Blame:
        """The answer, with what is known of the change."""
        resource, change = hit if hit is not None else ("", None)
        shown = covered(change) if change is not None else None
        return Blame(
            env=self.env,
            item=shown.name if shown is not None else self.wanted.label,
            resource=resource,
            kind=shown.kind if shown is not None else "",
            before=shown.before if shown is not None else None,
            after=shown.after if shown is not None else None,
            aside=self.aside,
            redone=self.redone,
            **facts,
        )
