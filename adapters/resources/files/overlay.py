"""Branches as overlay mounts: opened in a millisecond at any size, sealed by putting a new empty layer on top.

The writable layer of a branch lies where it will stay when it is sealed; a seal reads which paths it holds, mounts a
new overlay with it as the uppermost read-only layer, slides that beneath the old mount and detaches the old one. Before
that, the freeze makes the old mount read-only for everybody: a file that somebody has open for writing would go on
changing the sealed layer, so it is an error that names the holder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from statefork.adapters.resources.common import pulse
from statefork.adapters.resources.files.compaction import compacted
from statefork.adapters.resources.files.layers import Layers, dress
from statefork.adapters.resources.files.materialised import Stamps, mark_of, read_stamps
from statefork.adapters.resources.files.mounts import Overlay, detach, mount_overlay, mounted_below
from statefork.adapters.resources.files.strategy import Cut, Prepare
from statefork.adapters.resources.files.tree import ROOT, Marks, scan
from statefork.adapters.resources.holders import Holder, mappers, openers, told
from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.records import BranchRecord
from statefork.adapters.resources.reflink import Pulse
from statefork.engine.errors import ResourceBusy
from statefork.engine.ports import Strategy

LOWERS_MAX = 480  # the kernel takes 500
_READ_ONLY_TRIES = 40
_READ_ONLY_PAUSE_S = 0.001


class Variant(msgspec.Struct, frozen=True):
    """How overlays are mounted: by root, or by the owner of a user namespace."""

    name: str
    marks: Marks
    options: tuple[str, ...]


class OverlayTrees:
    """See :class:`statefork.adapters.resources.files.strategy.TreeStrategy`."""

    def __init__(self, layers: Layers, variant: Variant, *, reason: str, faster: str = "") -> None:
        self._layers = layers
        self._variant = variant
        self.prepare: Prepare | None = None
        self._described = Strategy(name=variant.name, reason=reason, faster=faster)
        self._lock = threading.Lock()
        self._mounted: dict[str, Overlay] = {}
        self._clean: dict[str, Stamps] = {}  # of each branch's writable layer, while nothing was written to it

    def described(self) -> Strategy:
        """Overlay, and why."""
        return self._described

    def upper_for(self, branch: str) -> str:
        """Every branch writes a layer of its own."""
        return self._layers.ledger.new_id(branch)

    def tree(self, branch: str) -> Path:
        """The mount point."""
        return self._layers.ledger.workplace(branch) / "tree"

    def open(self, record: BranchRecord) -> str:
        """Mount the layers below an empty one."""
        branch = record.handle.id
        record = self._mountable(record)
        self._make_upper(record.upper, record.layers)
        self.tree(branch).mkdir(parents=True)
        self._mount(record)
        if self.prepare is not None:
            self.prepare(self.tree(branch))
        with self._lock:
            self._clean[branch] = self._upper_stamps(record.upper)
        return f"opened {record.upper}"

    def ready(self, record: BranchRecord) -> None:
        """Mounted, if need be again."""
        with self._lock:
            mounted = record.handle.id in self._mounted
        if not mounted:
            release_mounts(self.tree(record.handle.id))
            self._mount(record)

    def hold(self, record: BranchRecord) -> None:
        """Make the mount read-only. Raises ResourceBusy, naming who has a file open for writing."""
        self.ready(record)
        if self._became_read_only(record):
            return
        holders = self._writers(record)
        # Without a writer it is a deleted file that somebody still reads: that can't change the layer.
        if holders:
            raise self._busy(record, holders)

    def _became_read_only(self, record: BranchRecord) -> bool:
        """Tried again and again: who writes and closes at once is gone before anybody could name him.

        Taken for a deleted file that is still read, such a writer would leave the mount writable, and what he wrote
        next would be in no version.
        """
        for _ in range(_READ_ONLY_TRIES):
            try:
                self._overlay(record).set_read_only(on=True)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                pulse()
                time.sleep(_READ_ONLY_PAUSE_S)
            else:
                return True
        return False

    def release(self, record: BranchRecord) -> None:
        """Writable again."""
        with self._lock:
            overlay = self._mounted.get(record.handle.id)
        if overlay is not None:
            overlay.set_read_only(on=False)

    def mark(self, record: BranchRecord) -> str:
        """Of the last seal, while nothing was written; else over the stamps of the writable layer too."""
        with self._lock:
            clean = self._clean.get(record.handle.id)
        stamps = self._upper_stamps(record.upper)
        return record.mark if stamps == clean and record.mark else mark_of(stamps, record.mark)

    def seal(self, record: BranchRecord) -> Cut:
        """Index the writable layer and go on over it."""
        branch = record.handle.id
        self.ready(record)
        mark = self.mark(record)
        upper = self.upper_for(branch)
        made: tuple[str, ...] = ()
        try:
            layers = made = (self._settled(record), *record.layers)
            layers = made = compacted(self._layers, layers, self._variant.marks)
            self._make_upper(upper, layers)
            self._swap(branch, layers, upper)
        except BaseException:
            self._layers.ledger.collect([layer for layer in (upper, *made) if layer != record.upper])
            raise
        self._tidy_swapped(record.upper)
        return Cut(layers=layers, upper=upper, mark=mark)

    def _tidy_swapped(self, old: str) -> None:
        """Whatever fails here, and cancellation too, must not keep the caller from recording where writes go now."""
        with contextlib.suppress(OSError):
            remove_tree(self._work(old))

    def close(self, branch: str) -> None:
        """Unmount."""
        release_mounts(self.tree(branch))
        with self._lock:
            overlay = self._mounted.pop(branch, None)
            self._clean.pop(branch, None)
        if overlay is not None:
            overlay.close()

    def shut(self) -> None:
        """Unmount everything; what was written stays, and ``ready`` mounts it again."""
        with self._lock:
            mounted, self._mounted = self._mounted, {}
        for branch, overlay in mounted.items():
            release_mounts(self.tree(branch))
            overlay.close()

    # -- mounting ---------------------------------------------------------------------------------------------

    def _mountable(self, record: BranchRecord) -> BranchRecord:
        """The record with layers that the kernel can show: others made some of them, or there are too many."""
        marks = self._variant.marks
        fits = len(record.layers) <= LOWERS_MAX
        if fits and all(self._layers.index(layer).mountable_with(marks) for layer in record.layers):
            return record
        flat = self._layers.flatten(record.layers, reflink=False, pulse=pulse)
        record = msgspec.structs.replace(record, layers=(flat,))
        self._layers.ledger.put_branch(record)
        return record

    def _make_upper(self, upper: str, layers: Sequence[str]) -> None:
        """An empty writable layer. It is the tree's root, so it gets the mode, owner and times of the one below."""
        place = self._layers.tree(upper)
        place.mkdir(parents=True)
        dress(str(place), self._layers.index(layers[0]).entries[ROOT])

    def _work(self, upper: str) -> Path:
        return self._layers.ledger.layer(upper) / "work"

    def _prepared(self, layers: Sequence[str], upper: str) -> Overlay:
        work = self._work(upper)
        remove_tree(work)  # of an earlier mount: a ``volatile`` one refuses a second use
        work.mkdir()
        lowers = [self._layers.tree(layer) for layer in layers]
        return mount_overlay(lowers, self._layers.tree(upper), work, self._variant.options)

    def _mount(self, record: BranchRecord) -> None:
        overlay = self._prepared(record.layers, record.upper)
        try:
            overlay.attach(self.tree(record.handle.id))
        except BaseException:
            overlay.close()
            raise
        with self._lock:
            self._mounted[record.handle.id] = overlay

    def _swap(self, branch: str, layers: Sequence[str], upper: str) -> None:
        """Put another overlay in the place of the branch's: the path shows the one or the other, never nothing."""
        place = self.tree(branch)
        overlay = self._prepared(layers, upper)
        try:
            # While the path still shows the old one. Afterwards somebody may write at once, and what he wrote would
            # count as what an unchanged branch looks like: the next version would be taken to be the last one.
            clean = self._upper_stamps(upper)
            overlay.attach(place, beneath=True)
            detach(place)
        except BaseException:
            overlay.close()
            raise
        with self._lock:
            old = self._mounted.pop(branch, None)
            self._mounted[branch] = overlay
            self._clean[branch] = clean
        if old is not None:
            old.close()

    def _overlay(self, record: BranchRecord) -> Overlay:
        with self._lock:
            return self._mounted[record.handle.id]

    # -- the writable layer -----------------------------------------------------------------------------------

    def _upper_stamps(self, upper: str, pulse: Pulse = pulse) -> Stamps:
        return read_stamps(self._layers.tree(upper), self._layers.ledger.root, directory_changes=False, pulse=pulse)

    def _settled(self, record: BranchRecord) -> str:
        """The branch's writable layer as one that may be sealed: indexed, and without redirected directories."""
        index = scan(self._layers.tree(record.upper), self._variant.marks, pulse)
        self._layers.write_index(record.upper, index)
        if not index.redirects:
            return record.upper
        return self._layers.without_redirects(record.upper, record.layers, self._variant.marks, pulse)

    def _writers(self, record: BranchRecord) -> list[Holder]:
        place = f"{self.tree(record.handle.id)}/"
        device = self._overlay(record).device()

        def within(path: str, status: os.stat_result | None) -> bool:
            return path.startswith(place) or (status is not None and status.st_dev == device)

        return sorted({*openers(within, writing=True), *mappers(place)})

    def _busy(self, record: BranchRecord, holders: list[Holder]) -> ResourceBusy:
        resource = self._layers.ledger.resource
        return ResourceBusy(
            f"{resource}: a file of {record.handle.env} is open for writing: {told(holders)}",
            hint="Close the file, then try again",
            resource=resource,
            env=record.handle.env,
            pids=",".join(str(holder.pid) for holder in holders),
        )


def release_mounts(place: Path) -> None:
    """Detach whatever is mounted at or below a directory, by whichever engine. Idempotent."""
    for mounted in mounted_below(place):
        with contextlib.suppress(FileNotFoundError):
            detach(mounted)
