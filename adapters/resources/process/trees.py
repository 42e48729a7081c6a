"""Overlays under a process that is frozen, not ended: the mount stays, and a version is a copy of what it has written.

The overlay of file trees (see files.overlay) seals by putting another mount in the place of the branch's. That needs
that nobody has a file open for writing, or works in the directory: a frozen process has, and does. Here the writable
layer goes on being the branch's, and what lies in it is copied; a file that has not changed since the last copy is a
hard link to that one, so a seal costs what was written since the last, and a look at each path in the layer.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from statefork.adapters.resources.common import pulse
from statefork.adapters.resources.files.compaction import compacted
from statefork.adapters.resources.files.layers import Layers, copy_entry, dress, make_whiteout, mark_opaque
from statefork.adapters.resources.files.materialised import Stamps, mark_of
from statefork.adapters.resources.files.overlay import OverlayTrees, Variant
from statefork.adapters.resources.files.strategy import Cut
from statefork.adapters.resources.files.tree import DIRECTORY, FILE, WHITEOUT, Index, scan
from statefork.adapters.resources.records import BranchRecord
from statefork.adapters.resources.reflink import probe_reflink


class Copied(msgspec.Struct, frozen=True):
    """The last copy of a branch's writable layer, and how that was stamped then."""

    layer: str
    stamps: Stamps


class LivingOverlays(OverlayTrees):
    """See the module. Whoever writes must be held still while a branch is sealed."""

    def __init__(self, layers: Layers, variant: Variant, *, reason: str, faster: str = "") -> None:
        super().__init__(layers, variant, reason=reason, faster=faster)
        self._copies: dict[str, Copied] = {}
        self._clones: bool | None = None  # whether copies share their extents; tried at the first

    def open(self, record: BranchRecord) -> str:
        """Mount the layers below an empty one."""
        super().open(record)
        return self.mark(record)

    def hold(self, record: BranchRecord) -> None:
        """Whoever writes is held still by those who know him."""
        self.ready(record)

    def release(self, record: BranchRecord) -> None:
        """Nothing was held."""

    def mark(self, record: BranchRecord) -> str:
        """Over the stamps of the writable layer."""
        return mark_of(self._upper_stamps(record.upper))

    def seal(self, record: BranchRecord) -> Cut:
        """Copy the writable layer."""
        branch = record.handle.id
        self.ready(record)
        stamps = self._upper_stamps(record.upper)
        made: tuple[str, ...] = ()
        try:
            index = scan(self._layers.tree(record.upper), self._variant.marks, pulse)
            copy = self._copied(record, index, stamps)
            layers = made = (copy, *record.layers)
            if index.redirects:
                layers = (self._layers.without_redirects(copy, record.layers, self._variant.marks, pulse), *layers[1:])
                self._layers.ledger.collect([copy])
                made = layers
            layers = made = compacted(self._layers, layers, self._variant.marks)
        except BaseException:
            self._layers.ledger.collect(made)
            raise
        self._copies[branch] = Copied(copy, stamps)
        return Cut(layers=layers, upper=record.upper, below=record.layers, mark=mark_of(stamps))

    def close(self, branch: str) -> None:
        """Unmount."""
        super().close(branch)
        self._copies.pop(branch, None)

    def _copied(self, record: BranchRecord, index: Index, stamps: Stamps) -> str:
        """A new layer with what the writable one holds."""
        source = str(self._layers.tree(record.upper))
        before = self._copies.get(record.handle.id)
        marks = self._variant.marks
        with self._layers.ledger.new_layer(f"{record.handle.env}-e{record.handle.epoch}") as (layer, place):
            tree = str(place / "tree")
            for path, entry in index.entries.items():
                target = f"{tree}/{path}" if path else tree
                if entry.kind == DIRECTORY:
                    pulse()
                    os.mkdir(target, 0o700)  # noqa: PTH102 - one for each file: making a Path costs as much
                    index.mountable &= not entry.opaque or mark_opaque(target, marks)
                elif entry.kind == WHITEOUT:
                    index.mountable &= make_whiteout(target)
                elif not (entry.kind == FILE and self._linked(before, path, stamps, target)):
                    copy_entry(f"{source}/{path}", target, entry, reflink=self._share(), pulse=pulse)
            for path, entry in reversed(index.entries.items()):
                if entry.kind == DIRECTORY:
                    dress(f"{tree}/{path}" if path else tree, entry)
            self._layers.write_index(layer, index, place)
        return layer

    def _linked(self, before: Copied | None, path: str, stamps: Stamps, target: str) -> bool:
        """Whether the file is the one that was copied last time; a layer that was collected meanwhile has none."""
        if before is None or before.stamps.get(path) != stamps.get(path):
            return False
        with contextlib.suppress(OSError):
            os.link(Path(self._layers.tree(before.layer), path), target, follow_symlinks=False)
            return True
        return False

    def _share(self) -> bool:
        if self._clones is None:
            self._clones = probe_reflink(self._layers.ledger.root).works
        return self._clones
