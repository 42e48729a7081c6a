"""Branches that are whole trees of their own: opened by copying every file, sealed by copying what changed.

A seal compares the tree with how it was at the last seal: inode, size, and the times that the kernel keeps. A new layer
holds the files that differ and names those that are gone, so its cost grows with the change, and a walk of the tree.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import msgspec

from statefork.adapters.resources.common import pulse
from statefork.adapters.resources.files.compaction import compacted
from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.strategy import Cut, Prepare
from statefork.adapters.resources.files.ticks import settle_ticks
from statefork.adapters.resources.files.tree import DIRECTORY, ROOT, TRUSTED, WHITEOUT, Entry, Index, scan, walk
from statefork.adapters.resources.records import BranchRecord
from statefork.adapters.resources.reflink import Pulse

Stamp = tuple[int, ...]
Stamps = dict[str, Stamp]


class MaterialisedTrees:
    """What the plain and the reflink strategy share."""

    def __init__(self, layers: Layers, *, reflink: bool) -> None:
        self._layers = layers
        self.prepare: Prepare | None = None
        self._reflink = reflink
        self._lock = threading.Lock()
        self._stamps: dict[str, Stamps] = {}  # of each open branch, at its last seal

    def upper_for(self, branch: str) -> str:
        """Branches write no layer."""
        return ""

    def tree(self, branch: str) -> Path:
        """A directory of the branch's own."""
        return self._layers.ledger.workplace(branch) / "tree"

    def open(self, record: BranchRecord) -> str:
        """Copy the whole tree."""
        branch = record.handle.id
        tree = self.tree(branch)
        tree.parent.mkdir(parents=True)
        self._layers.materialise(record.layers, tree, reflink=self._reflink, pulse=pulse)
        if self.prepare is not None:
            self.prepare(tree)
        stamps = read_stamps(tree, self._layers.ledger.root)
        self._remember(branch, stamps)
        return mark_of(stamps)

    def ready(self, record: BranchRecord) -> None:
        """The directory is there and can be listed."""
        with os.scandir(self.tree(record.handle.id)) as entries:
            next(entries, None)

    def hold(self, record: BranchRecord) -> None:
        """Whoever still has a file open writes into the branch, never into a sealed layer."""

    def release(self, record: BranchRecord) -> None:
        """Nothing was held."""

    def mark(self, record: BranchRecord) -> str:
        """Over the inode, size and kernel-kept times of everything in the tree."""
        return mark_of(read_stamps(self.tree(record.handle.id), self._layers.ledger.root))

    def seal(self, record: BranchRecord) -> Cut:
        """Copy what changed since the last seal into a layer."""
        branch = record.handle.id
        tree = self.tree(branch)
        with self._lock:
            old = self._stamps.get(branch)
        new = read_stamps(tree, self._layers.ledger.root)
        prefix = f"{record.handle.env}-e{record.handle.epoch}"
        index = scan(tree, pulse=pulse)
        # Where another engine opened the branch, nothing is known of it: the new layer then holds everything.
        delta = index if old is None else _delta(index, old, new)
        layer = self._layers.take(tree, delta, prefix, reflink=self._reflink, pulse=pulse)
        layers = (layer,) if old is None else (layer, *record.layers)
        try:
            layers = compacted(self._layers, layers, TRUSTED)
        except BaseException:
            self._layers.ledger.collect([layer])
            raise
        self._remember(branch, new)
        return Cut(layers=layers, mark=mark_of(new))

    def close(self, branch: str) -> None:
        """Forget what was known of the tree."""
        with self._lock:
            self._stamps.pop(branch, None)

    def shut(self) -> None:
        """Nothing is mounted."""

    def _remember(self, branch: str, stamps: Stamps) -> None:
        with self._lock:
            self._stamps[branch] = stamps


def read_stamps(directory: Path, trial: Path, *, directory_changes: bool = True, pulse: Pulse = pulse) -> Stamps:
    """What tells that a path was written, for every path of a tree, read when no change can hide in a clock tick.

    ``trial`` is a directory of the same file system where the clock's fineness can be tried. Without
    ``directory_changes`` the change time of directories is left out: overlayfs alters attributes when one is read.
    """
    while True:
        stamps = {path: _stamp(status, directory_changes) for path, _, status in walk(directory, pulse)}
        if settle_ticks(trial, max((stamp[-1] for stamp in stamps.values()), default=0)):
            return stamps


def _stamp(status: os.stat_result, directory_changes: bool) -> Stamp:
    changed_ns = status.st_ctime_ns if directory_changes or not stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
    return status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, changed_ns


def mark_of(stamps: Stamps, before: str = "") -> str:
    """A short name for a state of stamps, and of what was sealed before them."""
    facts = [(os.fsencode(path), stamps[path]) for path in sorted(stamps)]
    return hashlib.sha256(msgspec.msgpack.encode((before, facts))).hexdigest()[:32]


def _delta(index: Index, old: Stamps, new: Stamps) -> Index:
    """The part of the tree's index that differs, the directories on the way to it, and whiteouts for what is gone."""
    kept: dict[str, Entry] = {}
    changed = {path for path in index.entries if old.get(path) != new.get(path)}
    gone = {path for path in old.keys() - index.entries.keys() if _parent(path) in index.entries}
    wanted = changed | gone
    for path in list(wanted):
        while path != ROOT:
            path = _parent(path)
            wanted.add(path)
    entries = index.entries | dict.fromkeys(gone, Entry(WHITEOUT))
    for path in sorted(wanted | {ROOT}, key=lambda path: path.split("/") if path else []):
        parent = kept.get(_parent(path))
        if path == ROOT or (parent is not None and parent.kind == DIRECTORY):
            kept[path] = entries[path]
    return Index(entries=kept)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
