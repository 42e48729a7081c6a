"""What is kept of environments: when their present is published by itself, which generations stay, and their marks."""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager

from statefork.engine.collect import GcReport, collect
from statefork.engine.conductor import Conductor
from statefork.engine.errors import HeldByCaller, InvalidName
from statefork.engine.policy import DRAIN, ON_DEMAND, SnapshotPolicy
from statefork.engine.retention import KEEP_ALL, MARK_LENGTH_MAX, Retention
from statefork.journal.errors import StateforkError
from statefork.journal.values import Moment, Pruned

_logger = logging.getLogger(__name__)


class Upkeep:
    """Of one kernel's environments. What is chosen holds as long as the engine runs; else the contract says it."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._world = conductor.ledger.world
        self._policies: dict[str, SnapshotPolicy] = {}

    # --- snapshots --------------------------------------------------------------------------------------------------

    def set_snapshots(self, env: str, policy: SnapshotPolicy | None) -> None:
        """When this environment's snapshots are taken; None: as the contract says."""
        self._conductor.usable(env)
        if policy is None:
            self._policies.pop(env, None)
        else:
            self._policies[env] = policy

    def snapshots_of(self, env: str) -> SnapshotPolicy:
        """When they are taken."""
        return self._policies.get(env, self._conductor.contract.snapshots)

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

    def helps(self, env: str) -> None:
        """It is, or will be, an environment that the engine makes for itself: snapshots are asked for, and all stay."""
        self._policies[env] = ON_DEMAND
        self._conductor.pruning.choose(env, KEEP_ALL)

    def forget(self, env: str) -> None:
        """It has ended."""
        self._policies.pop(env, None)
        self._conductor.pruning.choose(env, None)

    # --- retention --------------------------------------------------------------------------------------------------

    def set_retention(self, env: str, retention: Retention | None) -> None:
        """Which of this environment's generations stay from its next publish on; None: as the contract says."""
        self._conductor.usable(env)
        self._conductor.pruning.choose(env, retention)

    def retention_of(self, env: str) -> Retention:
        """Which stay."""
        return self._conductor.pruning.of(env)

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

    async def collect(self) -> GcReport:
        """Remove what no environment reaches. Waits until no transition runs, and holds new ones back meanwhile."""
        conductor = self._conductor
        async with conductor.sharing.alone():
            return await collect(conductor.ledger, conductor.contract, conductor.resources, conductor.handles())
