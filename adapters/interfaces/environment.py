"""One environment, as its user holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any, Protocol

import msgspec

from statefork.adapters.interfaces.queries import QUERIES
from statefork.adapters.interfaces.views import Seen
from statefork.engine.capsule import Capsule
from statefork.engine.errors import ActionFailed, ActionTimeout, ContractError, InvalidAction, NotReady
from statefork.engine.holding import check_retention, check_snapshots
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.engine.making import Making
from statefork.engine.policy import Choice
from statefork.engine.ports import Blobs
from statefork.engine.refs import Ref, as_ref, resolve
from statefork.engine.settings import DrainPolicy
from statefork.journal.values import Binding, Json, Moment, Pruned
from statefork.replay.stage import Progress, nobody_watches
from statefork.replay.verdict import RolloutResult

Score = float | tuple[float, Json]
"""What an evaluator returns: a score, or a score with details that the journal keeps."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that holds what a moment held, and how it was made where none stood there."""

    moment: Moment
    made: RolloutResult | None = None


class Standings(Protocol):
    """Makes moments that nobody sealed."""

    def standing(self, ref: Ref, progress: Progress = nobody_watches) -> AbstractAsyncContextManager[Standing]:
        """A generation that holds what a moment held, as long as the body runs. Raises UnknownRef, Diverged."""
        ...


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
        """Rows of one read-only statement on a database of the environment, SQLite or PostgreSQL.

        ``?`` stands for a parameter on both. PostgreSQL's values come as SQLite's would where that has them: numbers,
        text (dates and times too), bytes; besides them booleans and JSON. Raises ContractError without such a database,
        ResourceFailed for what PostgreSQL refuses.
        """
        binding = self._context.bindings.get(resource)
        if binding is None or binding.adapter not in QUERIES:
            there = sorted(name for name, one in self._context.bindings.items() if one.adapter in QUERIES)
            raise ContractError(
                f"the contract has no database {resource!r}; it has {', '.join(there) or 'none'}", key=resource
            )
        return QUERIES[binding.adapter](binding, sql, parameters)

    async def look(self) -> Seen:
        """What the agent would see now, without acting."""
        return Seen(await self._context.observation(), self._environment.blobs)

    def base_url(self, resource: str | None = None) -> str:
        """The environment's private base URL, for evaluators that use plain HTTP clients."""
        return self._environment.base_url(resource)


class Environment:
    """A handle on one environment; cheap, and valid as long as its engine is open."""

    def __init__(self, kernel: Kernel, blobs: Blobs, name: str, standings: Standings) -> None:
        self.kernel = kernel
        self.blobs = blobs
        self.name = name
        self._standings = standings
        self._made: RolloutResult | None = None

    def __repr__(self) -> str:
        return f"<Environment {self.ref} {self.capsule.phase.value}>"

    @property
    def made(self) -> RolloutResult | None:
        """How the moment was made that it continues from, where nobody had sealed that: see ``Engine.fork``."""
        return self._made

    @made.setter
    def made(self, result: RolloutResult | None) -> None:
        self._made = result

    @property
    def capsule(self) -> Capsule:
        """The environment's control state."""
        return self.kernel.world.capsule(self.name)

    @property
    def ref(self) -> Moment:
        """The published generation. A moment that was made in it comes after that: ``made.ref`` is its name."""
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

    async def keep_snapshots(self, policy: str | None, *, key: str | None = None) -> str:
        """Publish the present by itself after actions, until something else is chosen; what holds now.

        ``"every action"``, ``"every 5 actions"``, ``"when changed"`` or ``"on demand"``; None: as the contract's key
        ``snapshots`` says. It is journaled: the next engine goes on with it. Raises ContractError for another text,
        EnvironmentRetired.
        """
        choice = Choice(snapshots=str(check_snapshots(policy)) if policy is not None else "")
        await self.kernel.upkeep.choose(self.name, choice, key=key)
        return str(self.kernel.upkeep.snapshots_of(self.name))

    async def keep_generations(self, policy: str | None, *, key: str | None = None) -> str:
        """Let generations go at each publish that can be made again, until something else is chosen; what holds now.

        ``"all"``, ``"last 20"`` or ``"forks and marks"``; None: as the contract's key ``retention`` says. It is
        journaled: the next engine goes on with it. Raises ContractError for another text, EnvironmentRetired.
        """
        choice = Choice(retention=str(check_retention(policy)) if policy is not None else "")
        await self.kernel.upkeep.choose(self.name, choice, key=key)
        return str(self.kernel.upkeep.retention_of(self.name))

    async def prune(self, policy: str | None = None, *, only_say: bool = False) -> tuple[Pruned, ...]:
        """Let them go now, and free what only they held; also of an environment that has ended.

        ``policy`` as in ``keep_generations``; None: what holds for the environment. ``only_say``: nothing is done but
        to tell which would go, and from where each could be made again. Raises ContractError.
        """
        retention = self.kernel.upkeep.retention_of(self.name) if policy is None else check_retention(policy)
        return await self.kernel.upkeep.prune(self.name, retention, only_say=only_say)

    async def reset(self, *, drain: DrainPolicy | None = None, key: str | None = None) -> Moment:
        """Go back to the origin, as a new generation. Raises TransitionAborted: then the old generation serves."""
        return await self.kernel.reset(self.name, drain=drain, key=key)

    async def restore(
        self,
        target: int | str | Ref | Moment,
        *,
        drain: DrainPolicy | None = None,
        key: str | None = None,
        progress: Progress = nobody_watches,
    ) -> Moment:
        """Go back to a moment (a number means a generation of this environment), as a new generation.

        One that nobody sealed is made first, in a child beside, as for a fork, and ``made`` says how that went; this
        environment serves meanwhile, and stays as it is where it can't be made. ``progress`` is called as by a fork.
        Raises UnknownRef, TransitionAborted, Diverged.
        """
        ref = as_ref(f"{self.name}@{target}" if isinstance(target, int) else target)
        await self.kernel.find(ref.env)
        return await self.kernel.restore(self.name, making(ref, self, self._standings, progress), drain=drain, key=key)

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


def making(ref: Ref, env: Environment, standings: Standings, progress: Progress = nobody_watches) -> Making:
    """A moment that an environment is to continue from; its ``made`` tells of it afterwards."""

    @asynccontextmanager
    async def made(ref: Ref) -> AsyncIterator[Moment]:
        env.made = None
        if ref.is_now:  # is not published for this
            yield resolve(ref, env.kernel.histories())
            return
        async with standings.standing(ref, progress) as standing:
            yield standing.moment
            env.made = standing.made

    return Making(ref, made)


def chosen(snapshots: str | None, retention: str | None) -> Choice:
    """What these texts mean; None: nothing is chosen. Raises ContractError for one that is no policy."""
    return Choice(
        snapshots=None if snapshots is None else str(check_snapshots(snapshots)),
        retention=None if retention is None else str(check_retention(retention)),
    )
