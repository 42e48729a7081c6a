"""What resources do alike whose versions are one file each: carrying them to another journal."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from statefork.adapters.resources.common import failures_told, in_thread
from statefork.adapters.resources.records import SealedRecord
from statefork.adapters.resources.stored import StoredResource
from statefork.journal.values import Sealed


class OneFileResource(StoredResource):
    """Implements :class:`statefork.engine.ports.Portable`: the file is copied as it is."""

    file_name: ClassVar[str]

    @abstractmethod
    def _unpacked(self, layer: str, place: Path) -> SealedRecord:
        """The record of a version that came from elsewhere; its file is in ``place``, which becomes the layer.

        Raises ResourceFailed for a file that is none of this adapter's.
        """

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """Copy the version's file. Raises ResourceFailed."""
        await in_thread(self._pack, sealed, directory)

    def _pack(self, sealed: Sealed, directory: Path) -> None:
        record = self._ledger.sealed(sealed)
        with failures_told(self.name, "packing a version"), self._ledger.pinned(record.layers):
            shutil.copyfile(self._ledger.layer(record.layers[0]) / self.file_name, directory / self.file_name)

    async def unpack(self, directory: Path) -> Sealed:
        """A version of its own. Raises ResourceFailed where it is not what ``pack`` writes."""
        return await in_thread(self._unpack, directory)

    def _unpack(self, directory: Path) -> Sealed:
        with failures_told(self.name, "unpacking a version"), self._ledger.new_layer("import") as (layer, place):
            shutil.copyfile(directory / self.file_name, place / self.file_name)
            record = self._unpacked(layer, place)
        return self._ledger.put_sealed(record)
