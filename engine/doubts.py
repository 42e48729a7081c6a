"""Asking again: what becomes of an environment whose last append got no answer, once the journal can be read.

Whatever was under way is finished where the append was kept, and given back where it was not, as if the answer had come
at once. Nothing is asked by itself: the next command on the environment does it, and so does closing.
"""

from __future__ import annotations

import logging

import anyio

from statefork.engine.capsule import Capsule, Phase
from statefork.engine.commands import Found, Park
from statefork.engine.errors import InDoubt
from statefork.engine.live import Doubt, Live
from statefork.engine.turns import Turns, in_own_task
from statefork.journal.errors import ClaimLost, ExpectationFailed, JournalError, JournalUnavailable

_logger = logging.getLogger(__name__)


class Doubts(Turns):
    """Turns that settle what is in doubt before anything else."""

    @in_own_task
    async def settle(self, env: str) -> None:
        """Settle what is in doubt, if anything is. Raises InDoubt where the journal can't be asked yet."""
        async with self._turn(env):
            pass

    async def _begun(self, live: Live, command: Found) -> None:
        """Journal that a founding begins."""
        try:
            await self.ledger.commit(command)
        except (InDoubt, ClaimLost):
            self._doubt(command.env, live, Doubt())
            raise

    async def _settle(self, env: str, live: Live) -> None:
        doubt = live.doubt
        assert doubt is not None
        with anyio.CancelScope(shield=True):
            try:
                kept = await self.ledger.settle(env)
            except (ClaimLost, ExpectationFailed):  # somebody else writes: nothing is to be settled here
                raise
            except (JournalError, OSError) as error:
                raise self._why_frozen(env) from error
            _logger.info("the append of %s that got no answer was %s", env, "kept" if kept else "not kept")
            live.doubt = None
            if live.context is not None:
                live.context.gate.renew("an append is being settled")
            capsule = self.ledger.world.environments.get(env)
            if capsule is not None and kept and capsule.transition is None:
                await self._finish(env, live, doubt, capsule)
            else:
                await self._undo(env, live, doubt, capsule)
        if live.doubt:  # the journal went away again
            raise self._why_frozen(env)

    async def _undo(self, env: str, live: Live, doubt: Doubt, capsule: Capsule | None) -> None:
        """It did not happen, or only its beginning did."""
        error = JournalUnavailable("the journal gave no answer, and did not keep it")
        if doubt.run is not None:
            await self._give_back(env, doubt.run, error)
        elif capsule is None:
            await self._discard(live, doubt.staging)
        else:
            await self._unfound(env, live, doubt.staging, error)
        if doubt.run is None and not live.doubt and (capsule is None or not capsule.generations):
            await self._forget(env)

    async def _finish(self, env: str, live: Live, doubt: Doubt, capsule: Capsule) -> None:
        """It happened, and only the answer was lost."""
        run, staging = doubt.run, doubt.staging
        if run is None:
            if capsule.phase is Phase.SERVING:  # nobody used it yet, and its slot was given back: it is bound when used
                try:
                    park = Park(env=env, at=self.ledger.clock.now(), reason="the answer to its start was lost")
                    await self.ledger.commit(park)
                except (JournalError, InDoubt):
                    self._doubt(env, live, Doubt(staging=staging))
                    return
            await self._discard(live, staging)
        elif capsule.phase is not Phase.SERVING:
            live.context = None
            await self._close(run.context)
            if capsule.phase is Phase.RETIRED:
                await self._forget(env)
        elif staging is not None:
            self._serve(live, staging.context)
            await self._close(run.context)
        else:
            await self._thaw(env, run, published=capsule.generation != run.context.gate.generation)
