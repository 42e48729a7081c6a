"""One environment, as its user holds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from typing import Any

import msgspec

from statefork.adapters.interfaces.views import Seen
from statefork.engine.capsule import Capsule
from statefork.engine.errors import ActionFailed, ActionTimeout, ContractError, InvalidAction, NotReady
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.engine.ports import Blobs
from statefork.engine.refs import Ref, as_ref, resolve
from statefork.engine.settings import DrainPolicy
from statefork.journal.values import Binding, Json, Moment

Score = float | tuple[float, Json]
"""What an evaluator returns: a score, or a score with details that the journal keeps."""


class Evaluation:
    """What an evaluator may read: one environment, one generation, through the original interfaces.

    The environment can't be frozen, reset or forked away while the evaluator holds this.
    """

    def __init__(self, context: EvaluationContext, environment: Environment) -> None:
        self._context = context
        self._environment = environment
        self.env: str = context.env
        self.generation: int = context.generation
        self.epoch: int = context.epoch

    def query(self, resource: str, sql: str, parameters: tuple[Json, ...] = ()) -> list[dict[str, Json]]:
        """Rows of a read-only query on one of the environment's SQLite databases. Raises ContractError without it."""
        path = str(self._database(resource).address["path"])
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql, parameters)]

    def _database(self, resource: str) -> Binding:
        binding = self._context.bindings.get(resource)
        if binding is None or binding.adapter != "sqlite":
            there = [name for name, one in self._context.bindings.items() if one.adapter == "sqlite"]
            raise ContractError(
                f"the contract has no SQLite database {resource!r}; it has {', '.join(there) or 'none'}", key=resource
            )
        return binding

    async def look(self) -> Seen:
        """What the agent would see now, without acting."""
        return Seen(await self._context.observation(), self._environment.blobs)

    def base_url(self, resource: str | None = None) -> str:
        """The environment's private base URL, for evaluators that use plain HTTP clients."""
        return self._environment.base_url(resource)


class Environment:
    """A handle on one environment; cheap, and valid as long as its engine is open."""

    def __init__(self, kernel: Kernel, blobs: Blobs, name: str) -> None:
        self.kernel = kernel
        self.blobs = blobs
        self.name = name

    def __repr__(self) -> str:
        return f"<Environment {self.ref} {self.capsule.phase.value}>"

    @property
    def capsule(self) -> Capsule:
        """The environment's control state."""
        return self.kernel.world.capsule(self.name)

    @property
    def ref(self) -> Moment:
        """The published generation."""
        return self.capsule.moment

    # --- acting and seeing --------------------------------------------------------------------------------------

    async def act(self, action: msgspec.Struct | Mapping[str, Json], *, timeout_s: float | None = None) -> Seen:
        """Carry out one action and see what came of it.

        Raises InvalidAction (nothing was done), ActionFailed (the world said no; ``error.seen`` is what was seen),
        ActionTimeout and LeaseRevoked (outcome unknown), EnvironmentFrozen, RuntimeDied.
        """
        data: Mapping[str, Json] = msgspec.to_builtins(action) if isinstance(action, msgspec.Struct) else action
        if not isinstance(data, Mapping):
            raise InvalidAction(f"an action is an object such as Goto(url), not {action!r}", environment=self.name)
        result = await self.kernel.act(self.name, data, timeout_s=timeout_s)
        seen = Seen(result.observation, self.blobs, number=result.number) if result.observation is not None else None
        if result.outcome == "ok" and seen is not None:
            return seen
        if result.outcome == "failed":
            failed = ActionFailed(result.error, environment=self.name, action=result.number)
            failed.seen = seen
            raise failed
        raise ActionTimeout(
            result.error or "the action's outcome is unknown",
            hint="Look again before acting on, or restore an earlier generation",
            environment=self.name,
            action=result.number,
        )

    async def observe(self) -> Seen:
        """Look without acting."""
        return Seen(await self.kernel.observe(self.name), self.blobs)

    def page(self) -> AbstractAsyncContextManager[Any]:
        """The native page, under one lease; what is done with it is recorded as one opaque action."""
        return self.kernel.raw(self.name)

    async def evaluate(self, check: Callable[[Evaluation], Awaitable[Score]], *, name: str = "") -> float:
        """Score the environment: all that ``check`` reads is of one generation. Returns and journals the score."""

        async def checked(context: EvaluationContext) -> Score:
            return await check(Evaluation(context, self))

        return await self.kernel.evaluate(self.name, name or getattr(check, "__name__", "check"), checked)

    # --- transitions --------------------------------------------------------------------------------------------

    # ``key``: as in Engine.create.

    async def snapshot(self, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Publish the present as a new generation; the agent goes on undisturbed. Raises TransitionAborted."""
        return await self.kernel.snapshot(self.name, drain=drain, key=key)

    async def reset(self, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Go back to the origin, as a new generation. Raises TransitionAborted: then the old generation serves."""
        return await self.kernel.reset(self.name, drain=drain, key=key)

    async def restore(
        self, target: int | str | Ref | Moment, *, drain: DrainPolicy | None = None, key: str | None = None
    ) -> Moment:
        """Go back to a generation (a number means one of this environment), as a new generation.

        Raises UnknownRef, TransitionAborted.
        """
        ref = f"{self.name}@{target}" if isinstance(target, int) else target
        moment = resolve(as_ref(ref), self.kernel.histories())
        return await self.kernel.restore(self.name, moment, drain=drain, key=key)

    async def recover(self) -> Moment:
        """Give up everything since the last published generation, whatever state it is in: that serves again.

        For what can be neither published nor replaced, such as a tail that fills its disk: a reset stages beside it.
        """
        return await self.kernel.recover(self.name)

    async def park(self, reason: str = "") -> None:
        """Seal and unbind: the environment costs only disk until it is used again."""
        await self.kernel.park(self.name, reason)

    async def activate(self) -> None:
        """Bind and probe now what would otherwise be bound at the next use."""
        await self.kernel.activate(self.name)

    def pinned(self) -> AbstractContextManager[None]:
        """Inside the body the environment does not give its slot to another."""
        return self.kernel.pinned(self.name)

    async def retire(self, *, key: str | None = None) -> None:
        """End the environment. Its history stays readable; generations that others build on survive."""
        await self.kernel.retire(self.name, key=key)

    # --- where things are ---------------------------------------------------------------------------------------

    @property
    def bindings(self) -> Mapping[str, Binding]:
        """Where each resource is reachable now; empty while parked."""
        return self.kernel.bindings(self.name)

    def base_url(self, resource: str | None = None) -> str:
        """Private base URL of a site, for HTTP clients that know nothing of statefork: the first site unless named.

        Raises NotReady while the environment is parked or when it has no such site.
        """
        for name, binding in self.bindings.items():
            if "base_url" in binding.address and resource in (None, name, binding.address.get("host")):
                return str(binding.address["base_url"])
        raise NotReady(
            f"{self.name} has no site {resource or ''} bound now",
            hint="Activate it first, or name one of the contract's web resources",
            environment=self.name,
        )

    async def private_bytes(self) -> dict[str, int]:
        """Bytes on disk that only this environment's head generation keeps, by resource."""
        sizes: dict[str, int] = {}
        for name, component in self.capsule.head.manifest.items():
            resource = self.kernel.resources[name]
            branch = self.kernel.branches(self.name).get(name)
            usage = await resource.usage(branch if branch is not None else component.sealed)
            sizes[name] = usage.private_bytes
        return sizes
