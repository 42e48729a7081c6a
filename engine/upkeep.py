"""What is kept of environments: when their present is published by itself, which generations stay, and their marks."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager

from statefork.engine.collect import Counted, GcReport, collect, nobody_counts
from statefork.engine.conductor import Conductor
from statefork.engine.errors import HeldByCaller, InvalidName
from statefork.engine.holding import checked, snapshots_of
from statefork.engine.keyed import Keys
from statefork.engine.policy import DRAIN, Choice, SnapshotPolicy
from statefork.engine.retention import MARK_LENGTH_MAX, Retention
from statefork.journal.errors import StateforkError
from statefork.journal.values import Moment, Pruned

_logger = logging.getLogger(__name__)


class Upkeep:
    """Of one kernel's environments."""

    def __init__(self, conductor: Conductor, keys: Keys) -> None:
        self._conductor = conductor
        self._world = conductor.ledger.world
        self._keys = keys

    # --- policies ---------------------------------------------------------------------------------------------------

    async def choose(self, env: str, choice: Choice, *, key: str | None = None) -> None:
        """What holds for an environment from its next action and publish on, until something else is chosen.

        It is journaled, so it holds after a crash or the end of the engine, too. What holds already is not told again.
        Raises ContractError for a policy that is none, EnvironmentRetired, HeldByCaller.
        """
        choice = checked(choice)
        async with self._keys.command(key, "keep", env, *choice.words()) as told:
            if not told.whole:
                await self._conductor.choose(env, choice, note=told.note())

    def snapshots_of(self, env: str) -> SnapshotPolicy:
        """When an environment's present is published by itself."""
        return snapshots_of(self._world.capsule(env), self._conductor.contract)

    def retention_of(self, env: str) -> Retention:
        """Which of its generations stay."""
        return self._conductor.pruning.of(env)

    # --- snapshots --------------------------------------------------------------------------------------------------

    async def after_action(self, env: str) -> None:
        """Take the snapshot that the policy asks for. The action is done: what keeps it from being taken is logged."""
        policy = self.snapshots_of(env)
        capsule = self._world.capsule(env)
        if not policy.due(capsule.actions - capsule.head.actions):
            return
        try:
            await self._conductor.keep_up(env, DRAIN, only_changed=policy.changed)
        except HeldByCaller:
            return  # it is in the middle of something that is one to it
        except StateforkError as error:
            _logger.warning("no snapshot of %s after action %d: %s", env, capsule.actions, error)

    # --- retention --------------------------------------------------------------------------------------------------

    async def prune(self, env: str, retention: Retention, *, only_say: bool = False) -> tuple[Pruned, ...]:
        """Let go at once of what need not stay, also of a retired environment; what only it held is removed.

        ``only_say``: nothing is done but to tell what would go. Raises UnknownEnvironment, HeldByCaller.
        """
        gone = await self._conductor.prune(env, retention, only_say=only_say)
        if gone and not only_say:
            await self._conductor.pruning.sweep()
        return gone

    async def mark(self, moment: Moment, text: str) -> None:
        """Call a published generation something, which keeps it; an empty text takes the mark away.

        Raises UnknownRef, GenerationPruned, InvalidName for a text that is too long or not printable.
        """
        if len(text) > MARK_LENGTH_MAX or not text.isprintable():
            rule = f"A mark has at most {MARK_LENGTH_MAX} printable characters"
            raise InvalidName("that can't be a mark", hint=rule, environment=moment.env)
        await self._conductor.mark(moment, text)

    def reading(self) -> AbstractAsyncContextManager[None]:
        """Nothing that is published when the body begins is removed before it ends; no transition may be in it."""
        return self._conductor.sharing.shared()

    async def collect(self, count: Counted = nobody_counts) -> GcReport:
        """Remove what no environment reaches. Waits until no transition runs, and holds new ones back meanwhile."""
        conductor = self._conductor
        async with conductor.sharing.alone():
            return await collect(
                conductor.ledger,
                conductor.contract,
                conductor.resources,
                conductor.handles(),
                parallel_max=conductor.settings.parallel_max,
                count=count,
            )
