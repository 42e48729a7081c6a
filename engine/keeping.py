"""When an engine keeps a checkpoint of its fold: now and then while it runs, and when it closes.

The work is done beside everything else. What fails is logged and costs only time, at the next opening.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from statefork.engine.conductor import Conductor
from statefork.engine.ledger import Ledger
from statefork.journal.errors import JournalError

_PATIENCE_S = 60.0  # after a checkpoint that could not be made
_CLOSING_PART = 20  # at the end already a tail of this part of ``checkpoint_events`` is worth a checkpoint

_logger = logging.getLogger(__name__)


@asynccontextmanager
async def keeping(conductor: Conductor) -> AsyncIterator[None]:
    """Around the life of an engine: checkpoints are made in the body, and a last one at its end."""
    ledger, events = conductor.ledger, conductor.settings.checkpoint_events
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        if events:
            tasks.start_soon(_keep, ledger, events)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, as itself instead of in a group
            failure = error
        finally:
            tasks.cancel_scope.cancel()
            if events and ledger.uncovered * _CLOSING_PART >= events and not conductor.hurried.is_set():
                with anyio.move_on_after(conductor.settings.discard_s, shield=True):
                    await _save(ledger)
    if failure is not None:
        raise failure


async def _keep(ledger: Ledger, events: int) -> None:
    while True:
        await ledger.grown(events_min=events)
        if not await _save(ledger):
            await anyio.sleep(_PATIENCE_S)


async def _save(ledger: Ledger) -> bool:
    try:
        return await ledger.save_checkpoint()
    except (JournalError, OSError) as error:
        _logger.warning("a checkpoint of the fold could not be kept, so the next opening reads more: %s", error)
        return False
