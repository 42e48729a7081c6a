"""One consistent cut: quiesce all, seal all; what was written in between makes it no cut.

The proof is not our own book-keeping alone: the stores' write counters and the gate's admissions must be the same
before the first seal and after the last. Not everything can be made to stand still in time (a page that is busy), so
a store that was written to is sealed again, a few times; the span over which nothing moved begins anew with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from statefork.engine.contract import Contract
from statefork.engine.errors import StateforkError, TornCut, TransitionAborted
from statefork.engine.live import Run
from statefork.engine.ports import Foresighted, Resource
from statefork.engine.staging import Working, each, quietly
from statefork.journal.values import Component, Sealed

TRIES = 3
"""How often at most a store is sealed in one cut."""

Keep = Callable[[], Awaitable[None]]
"""Returns when everything that was sealed so far outlives the engine; raises a StateforkError where it can't."""


async def take_cut(
    contract: Contract,
    resources: Mapping[str, Resource],
    run: Run,
    *,
    published: Mapping[str, Component],
    deadline_s: float,
    keep: Keep | None = None,
    to_fork: bool = False,
) -> dict[str, Component]:
    """Quiesce and seal a drained context. What was quiesced and sealed is in ``run``, also when this fails.

    ``published``: the manifest of the generation that serves. ``to_fork``: a branch of each will be wanted as soon as
    it is published.
    Raises TornCut, TransitionAborted (what was sealed can't be kept), ComponentFailed (ResourceBusy and others; what
    was under way when the deadline passed).
    """
    context = run.context
    assert context.gate.shut, "I2: a cut through an open gate"
    assert not context.gate.live, "I3: a cut through something that runs"
    cutting = _Cutting(resources, run, published, deadline_s, to_fork)
    admissions = context.gate.admissions
    working = Working()
    with anyio.move_on_after(deadline_s) as late:
        with run.timer("quiesce"):
            await each(contract, cutting.quiesce, doing="quiescing", reverse=True, working=working)
        with run.timer("seal"):
            await each(contract, cutting.mark, doing="reading the write mark", ordered=False, working=working)
            for _ in range(TRIES):
                await each(contract, cutting.seal, doing="sealing", ordered=False, working=working)
                await each(contract, cutting.mark, doing="reading the write mark", ordered=False, working=working)
                if not cutting.written or admissions != context.gate.admissions:
                    break
    if late.cancelled_caught:
        raise working.late(deadline_s) or TransitionAborted(
            f"{context.identity.env} could not be sealed within {deadline_s:g} s"
        )
    if cutting.written or admissions != context.gate.admissions:
        raise _torn(context.identity.env, [name for name in contract.order if name in cutting.written])
    await _kept(keep, run)
    return _components(contract, run.sealed)


class _Cutting:
    """One cut under way. ``written``: what was written to since it was last sealed."""

    def __init__(
        self,
        resources: Mapping[str, Resource],
        run: Run,
        published: Mapping[str, Component],
        deadline_s: float,
        to_fork: bool,
    ) -> None:
        self._resources = resources
        self._run = run
        self._branches = run.context.branches
        self._published = published
        self._deadline_s = deadline_s
        self._to_fork = to_fork
        self._marks: dict[str, str] = {}
        self.written: set[str] = set()

    async def quiesce(self, name: str) -> None:
        self._run.quiesced.add(name)
        with self._run.timer(f"quiesce {name}"):
            await self._resources[name].quiesce(self._branches[name])

    async def seal(self, name: str) -> None:
        """Seal it, unless what was sealed before is still what it holds."""
        before = self._run.sealed.get(name)
        if before is not None and name not in self.written:
            return
        resource = self._resources[name]
        with self._run.timer(f"seal {name}"):
            if self._to_fork and isinstance(resource, Foresighted):
                resource.expect_fork(self._branches[name])
            sealed = self._run.sealed[name] = await resource.seal(self._branches[name])
        if before is not None and before not in (sealed, self._published[name].sealed):
            await quietly(name, "discard", resource.discard(before), self._deadline_s)

    async def mark(self, name: str) -> None:
        """Read its write counter: has it moved since it was read last?"""
        mark = await self._resources[name].write_mark(self._branches[name])
        if self._marks.setdefault(name, mark) == mark:
            self.written.discard(name)
        else:
            self.written.add(name)
            self._marks[name] = mark


def _torn(env: str, written: Sequence[str]) -> TornCut:
    return TornCut(
        f"{env} was written while it was sealed: {' '.join(written) or 'a request was admitted'}",
        hint="Nothing was published; try again.",
        environment=env,
        component=written[0] if written else "",
    )


def _components(contract: Contract, sealed: Mapping[str, Sealed]) -> dict[str, Component]:
    return {
        name: Component(
            sealed=sealed[name],
            durability=contract.resources[name].durability,
            depends_on=contract.resources[name].depends_on,
        )
        for name in contract.order
    }


async def _kept(keep: Keep | None, run: Run) -> None:
    if keep is None:
        return
    env = run.context.identity.env
    try:
        with run.timer("keep"):
            await keep()
    except StateforkError as error:
        raise TransitionAborted(
            f"what was sealed of {env} can't be kept: {error.message}",
            hint=error.hint,
            environment=env,
            reason=error.message,
            cause=error.code,
        ) from error
