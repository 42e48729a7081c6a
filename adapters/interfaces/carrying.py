"""Environments as files: written from any moment, and taken in."""

from __future__ import annotations

from pathlib import Path

from statefork.adapters.interfaces.forking import Forks
from statefork.engine.capsule import Phase
from statefork.engine.kernel import Kernel
from statefork.engine.ports import Blobs
from statefork.engine.refs import Ref, Standing, nearest
from statefork.journal.log import Journal
from statefork.replay.export.exporting import Export, export
from statefork.replay.export.form import Exported, Imported, Progress, nobody_watches
from statefork.replay.export.importing import import_

__all__ = ["Carrying", "Exported", "Imported", "nobody_watches"]


class Carrying:
    """The exports and imports of one engine (see :meth:`statefork.adapters.interfaces.python.Engine.export`)."""

    def __init__(self, kernel: Kernel, journal: Journal, blobs: Blobs, state: Path, forks: Forks) -> None:
        self._kernel = kernel
        self._journal = journal
        self._blobs = blobs
        self._state = state
        self._forks = forks

    async def export(
        self, ref: Ref, path: Path, progress: Progress, *, ends: bool, base: bool, secrets: bool
    ) -> Exported:
        """The file of a moment: of the present, or any of the past, which is made where nobody had sealed it."""
        await self._kernel.find(ref.env)
        if ref.is_now and self._kernel.environments[ref.env].phase is Phase.RETIRED:
            standing = Standing(self._kernel.environments[ref.env].moment, 0)
        elif ref.is_now:
            standing = Standing(await self._kernel.snapshot(ref.env), 0)
        else:
            standing = nearest(ref, self._kernel.histories())
        made, moment = None, standing.moment
        if not standing.exact:
            progress(0.0, f"making {ref}")
            made = await self._forks.lend(ref, f"export of {ref}")
        try:
            if made is not None:
                moment = await made.snapshot()
            called = str(ref) if made is not None else ""
            wanted = Export(moment=moment, environment=ref.env, called=called, ends=ends, base=base, secrets=secrets)
            return await export(self._kernel, self._journal, self._blobs, wanted, path, progress)
        finally:
            if made is not None:
                await self._forks.take_back(made.name)

    async def import_(self, path: Path, name: str | None, progress: Progress) -> Imported:
        """A new environment of what a file holds."""
        return await import_(self._kernel, self._blobs, self._state, path, name, progress)
