"""An engine that was taken for dead: once another one has its place, nothing of it serves any more.

Whatever it still appends is refused by the journal anyway. That is noticed at the next append, and also at rest, so
that an engine that was stopped and wakes up lets no agent act on what somebody else has taken over.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from statefork.engine.beside import beside
from statefork.engine.conductor import Conductor
from statefork.journal.log import Fenced

_logger = logging.getLogger(__name__)


@asynccontextmanager
async def fencing(conductor: Conductor) -> AsyncIterator[None]:
    """Around the life of an engine: where it is fenced out, all of its environments are frozen."""
    journal = conductor.ledger.journal
    if not isinstance(journal, Fenced):
        yield
        return

    async def watch() -> None:
        lost = await journal.fenced()
        _logger.error("%s", lost)
        conductor.fence(lost)

    async with beside(watch):
        yield
