"""What hosts outside had answered before a moment, read back from the journal (see statefork.engine.outside)."""

from __future__ import annotations

from statefork.engine.outside import Known, key_of
from statefork.journal.log import Journal
from statefork.journal.values import Moment
from statefork.replay.lineage import answers_before
from statefork.replay.rebuild import pasts_of


class Recalling:
    """Reads the streams of the environments that led to a moment, whenever it is called."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def __call__(self, moment: Moment) -> Known:
        """The last answer to each question."""
        await self._journal.flush()
        known = await pasts_of(self._journal, moment.env)
        if moment.env not in known:
            return {}
        return {key_of(event): event for event in answers_before(known, moment)}
