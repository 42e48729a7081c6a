"""Profiles carried to another journal: the half of a browser that needs no Chromium."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from anyio import to_thread

from statefork.adapters.resources.browser.files import ProfileFiles
from statefork.journal.values import Handle, Sealed


class CarriedProfiles(ABC):
    """Implements :class:`statefork.engine.ports.Portable`.

    Cookies and storage go along: they are what the sites of the environment know it by, and open nothing else.
    """

    _files: ProfileFiles

    @abstractmethod
    def _mine(self, handle: Handle) -> None:
        """Raise ForeignHandle for a handle of another journal or resource."""

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """The profile as it lies on disk. Raises ResourceFailed."""
        self._mine(sealed)
        await to_thread.run_sync(self._files.pack, sealed.version, directory)

    async def unpack(self, directory: Path) -> Sealed:
        """A version of its own. Raises ResourceFailed."""
        return await to_thread.run_sync(self._files.unpack, directory)
