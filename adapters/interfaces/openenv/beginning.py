"""The moment that episodes begin with: the one that is named, else the origin of one that is made for this."""

from __future__ import annotations

import logging
from itertools import count

import anyio

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.engine.capsule import Phase
from statefork.engine.errors import EnvironmentElsewhere, EnvironmentExists, ResourceFailed, TransitionAborted
from statefork.engine.refs import as_ref

_log = logging.getLogger(__name__)

WHAT_FOR = "an OpenEnv episode"
TEMPLATE = "episodes"
"""The environment whose origin episodes begin with, where no moment is named. It is made at the first. Where that name
is used up, the next one is ``episodes-2``, and so on."""


class Beginning:
    """The moment that episodes begin with. ``ref`` None: the origin of a template."""

    def __init__(self, engine: Engine, ref: str | None) -> None:
        self._engine = engine
        self._ref = ref
        self._template = ""
        self._choosing = anyio.Lock()

    def check(self) -> None:
        """Raise UnknownRef where it names none, UnknownEnvironment where there is no such environment."""
        if self._ref is not None:
            self._engine.environment(as_ref(self._ref).env)

    async def try_out(self) -> None:
        """Begin with the moment that is named, once, and end that: raises what the first episode would meet."""
        if self._ref is not None:
            await self._engine.take_back((await self.begin()).name)

    async def begin(self) -> Environment:
        """A new environment of it."""
        if self._ref is not None:
            return await self._engine.lend(self._ref, WHAT_FOR)
        async with self._choosing:
            if not self._is_there(self._template):
                return await self._first()
        return await self._of(self._template)

    async def _first(self) -> Environment:
        """The first episode of a template: of one that an engine before has made, where it can still be forked."""
        for number in count(1):
            name = TEMPLATE if number == 1 else f"{TEMPLATE}-{number}"
            if self._is_there(name):
                try:
                    env = await self._of(name)
                except TransitionAborted as error:
                    if error.facts.get("cause") != ResourceFailed.code:
                        raise
                    await self._give_up(name, error)
                    continue
            elif name in self._engine.capsules or not await self._made(name):
                continue
            else:
                env = await self._of(name)
            self._template = name
            return env
        raise AssertionError("numbers have no end")

    def _is_there(self, name: str) -> bool:
        capsule = self._engine.capsules.get(name)
        ours = self._engine.kernel.contract.digest
        return capsule is not None and capsule.phase is not Phase.RETIRED and capsule.contract == ours

    async def _of(self, template: str) -> Environment:
        return await self._engine.lend(f"{template}@1", WHAT_FOR)

    async def _made(self, name: str) -> bool:
        """Whether the name was free, also in another state directory of the same journal."""
        try:
            env = await self._engine.create(name)
        except (EnvironmentExists, EnvironmentElsewhere):
            return False
        await env.park(f"kept for {WHAT_FOR}")
        return True

    async def _give_up(self, name: str, why: TransitionAborted) -> None:
        """A store of it has nothing any more, such as one in memory, which ends with its engine. What somebody has used
        is left alone."""
        _log.warning("episodes can't begin with %s@1 any more, and do so with another environment: %s", name, why)
        if self._engine.capsules[name].actions == 0:
            await self._engine.environment(name).retire()
