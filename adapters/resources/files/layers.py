"""Layers on disk: ``layers/<id>/tree`` holds a layer's bytes, ``layers/<id>/index`` says what it changes.

Paths are plain strings where there is one for every file of a tree: making a Path costs as much as creating the file.
"""
# ruff: noqa: PTH101, PTH102, PTH211 - for the same reason

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from statefork.adapters.resources.files.tree import (
    DIRECTORY,
    LINK,
    ROOT,
    WHITEOUT,
    Entry,
    Index,
    Marks,
    Node,
    file_digest,
    lay,
    scan,
    show,
    shown,
)
from statefork.adapters.resources.ledger import Ledger
from statefork.adapters.resources.reflink import Pulse, copy_bytes, no_pulse

_SMALL_BYTES = 256 << 10  # up to here one read and one write beat the copying system calls
_INDEXES_MAX = 256  # kept decoded
_DECODER = msgspec.msgpack.Decoder(Index)


class Layers:
    """Reads and writes the layers of one ledger. Its methods block."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._lock = threading.Lock()
        self._indexes: OrderedDict[str, Index] = OrderedDict()

    def tree(self, layer: str) -> Path:
        """Where a layer's bytes lie."""
        return self.ledger.layer(layer) / "tree"

    def index(self, layer: str) -> Index:
        """What a layer changes."""
        with self._lock:
            if layer in self._indexes:
                self._indexes.move_to_end(layer)
                return self._indexes[layer]
        index = _DECODER.decode((self.ledger.layer(layer) / "index").read_bytes())
        self._keep(layer, index)
        return index

    def write_index(self, layer: str, index: Index, directory: Path | None = None) -> None:
        """Record what a layer changes; ``directory`` is the layer's while it has not got its name.

        No version names the layer yet, so that a half-written index is never read.
        """
        ((directory or self.ledger.layer(layer)) / "index").write_bytes(msgspec.msgpack.encode(index))
        self._keep(layer, index)

    def _keep(self, layer: str, index: Index) -> None:
        with self._lock:
            self._indexes[layer] = index
            while len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)

    def view(self, layers: Sequence[str]) -> Node:
        """What a stack of layers, top first, shows."""
        return show([(layer, self.index(layer)) for layer in reversed(layers)])

    def sha256(self, node: Node, pulse: Pulse = no_pulse) -> str:
        """The digest of a file's bytes; remembered in the layer's index object."""
        if node.entry.sha256:
            return node.entry.sha256
        entries = self.index(node.layer).entries
        known = entries[node.path]
        if not known.sha256:
            digest = file_digest(self.tree(node.layer) / node.path, pulse)
            entries[node.path] = known = msgspec.structs.replace(known, sha256=digest)
        return known.sha256

    # -- making trees -----------------------------------------------------------------------------------------

    def materialise(self, layers: Sequence[str], target: Path, *, reflink: bool, pulse: Pulse = no_pulse) -> None:
        """Write what a stack of layers shows into a new directory: writable files of its own."""
        view = self.view(layers)
        trees = {layer: str(self.tree(layer)) for layer in layers}
        root = str(target)
        directories = []
        for path, node in view.walk():
            place = f"{root}/{path}" if path else root
            if node.is_directory():
                pulse()
                os.mkdir(place, 0o700)
                directories.append((place, node.entry))
            else:
                copy_entry(f"{trees[node.layer]}/{node.path}", place, node.entry, reflink=reflink, pulse=pulse)
        for place, entry in reversed(directories):
            dress(place, entry)

    def take(self, source: Path, index: Index, prefix: str, *, reflink: bool, pulse: Pulse = no_pulse) -> str:
        """A new layer with copies of the index's files from a directory; return its id."""
        with self.ledger.new_layer(prefix) as (layer, place):
            tree = place / "tree"
            complete = True
            for path, entry in index.entries.items():
                target = f"{tree}/{path}" if path else str(tree)
                if entry.kind == DIRECTORY:
                    pulse()
                    os.mkdir(target, 0o700)
                elif entry.kind == WHITEOUT:
                    complete &= make_whiteout(target)
                else:
                    copy_entry(f"{source}/{path}", target, entry, reflink=reflink, pulse=pulse)
            _dress_directories(tree, index)
            self.write_index(layer, Index(entries=index.entries, mountable=complete), place)
        return layer

    def squash(
        self, layers: Sequence[str], below: Sequence[str], marks: Marks, *, suffix: str = "", pulse: Pulse = no_pulse
    ) -> str:
        """One layer in place of several (top first) that lie on the layers ``below``. None of them may redirect."""
        top = Node(Entry(DIRECTORY, mode=0o755), "", ROOT)
        for layer in reversed(layers):
            lay(top, layer, self.index(layer), keep_whiteouts=True)
        return self._linked("merged", self._without_vain_whiteouts(top, below), marks, suffix, pulse)

    def _without_vain_whiteouts(self, top: Node, below: Sequence[str]) -> Iterator[tuple[str, Node]]:
        """Leave out whiteouts of what is not there: in a directory that is not merged, overlayfs would list them."""
        indexes = [self.index(layer) for layer in below]
        alone: set[str] = set()  # directories through which nothing below is seen
        for path, node in top.walk():
            parent_alone = path != ROOT and path.rpartition("/")[0] in alone
            if node.entry.kind == WHITEOUT and (parent_alone or not shown(indexes, path)):
                continue
            if node.is_directory() and (parent_alone or node.entry.opaque):
                alone.add(path)
            yield path, node

    def without_redirects(self, layer: str, below: Sequence[str], marks: Marks, pulse: Pulse = no_pulse) -> str:
        """The same layer with each redirected directory given whole, so that it can be squashed."""
        view = self.view(below)
        index = self.index(layer)
        lay(view, layer, index)
        nodes: list[tuple[str, Node]] = []
        whole: list[str] = []  # redirected directories: what is in them was taken with them
        for path, entry in sorted(index.entries.items(), key=lambda item: item[0].split("/")):
            if any(path.startswith(f"{directory}/") for directory in whole):
                continue
            if not entry.redirect:
                nodes.append((path, Node(entry, layer, path)))
                continue
            whole.append(path)
            found = view.find(path)
            assert found is not None, "a layer's own directory is in every view of it"
            plain = msgspec.structs.replace(entry, opaque=True, redirect="")
            nodes.append((path, Node(plain, layer, path)))
            nodes += [(below_path, node) for below_path, node in found.walk(path) if below_path != path]
        return self._linked(layer, iter(nodes), marks, "", pulse)

    def _linked(self, prefix: str, nodes: Iterator[tuple[str, Node]], marks: Marks, suffix: str, pulse: Pulse) -> str:
        """A new layer of hard links, which are safe since sealed layers are never written: no bytes are copied."""
        with self.ledger.new_layer(prefix, suffix) as (layer, place):
            tree = place / "tree"
            index = Index(entries={})
            trees: dict[str, str] = {}
            for path, node in nodes:
                entry = msgspec.structs.replace(node.entry, redirect="")
                index.entries[path] = entry
                target = f"{tree}/{path}" if path else str(tree)
                if entry.kind == DIRECTORY:
                    os.mkdir(target, 0o700)
                    if entry.opaque:
                        index.marks = marks.kind
                        index.mountable &= mark_opaque(target, marks)
                elif entry.kind == WHITEOUT:
                    index.mountable &= make_whiteout(target)
                else:
                    pulse()
                    source = trees.setdefault(node.layer, str(self.tree(node.layer)))
                    os.link(f"{source}/{node.path}", target, follow_symlinks=False)
            _dress_directories(tree, index)
            self.write_index(layer, index, place)
        return layer

    def flatten(self, layers: Sequence[str], *, reflink: bool, pulse: Pulse = no_pulse) -> str:
        """One layer that holds all that a stack shows, for those who can't read the stack itself."""
        with self.ledger.new_layer("flat") as (layer, place):
            self.materialise(layers, place / "tree", reflink=reflink, pulse=pulse)
            self.write_index(layer, scan(place / "tree", pulse=pulse), place)
        return layer


def copy_entry(source: str, target: str, entry: Entry, *, reflink: bool, pulse: Pulse = no_pulse) -> None:
    """Copy a file or link with its mode, times and, where that is allowed, owner."""
    if entry.kind == LINK:
        os.symlink(entry.target, target)
        _own(target, entry)
        with contextlib.suppress(OSError):  # not every file system keeps the times of links
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        return
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if entry.size <= _SMALL_BYTES and not reflink:
                _copy_small(reading, writing)
            elif entry.size:
                copy_bytes(reading, writing, reflink=reflink, pulse=pulse)
            if _foreign(entry):
                with contextlib.suppress(OSError):  # in a user namespace most owners do not exist
                    os.fchown(writing, entry.uid, entry.gid)
            os.fchmod(writing, entry.mode)
            os.utime(writing, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _copy_small(reading: int, writing: int) -> None:
    while data := os.read(reading, _SMALL_BYTES):
        while data:
            data = data[os.write(writing, data) :]


def _foreign(entry: Entry) -> bool:
    return os.geteuid() == 0 and (entry.uid, entry.gid) != (0, os.getegid())


def _own(place: str, entry: Entry) -> None:
    if _foreign(entry):
        with contextlib.suppress(OSError):
            os.chown(place, entry.uid, entry.gid, follow_symlinks=False)


def dress(place: str, entry: Entry) -> None:
    """Give a directory, once it is full, its owner, mode and times."""
    _own(place, entry)
    os.chmod(place, entry.mode)
    os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))


def _dress_directories(tree: Path, index: Index) -> None:
    for path, entry in reversed(index.entries.items()):
        if entry.kind == DIRECTORY:
            dress(f"{tree}/{path}" if path else str(tree), entry)


def make_whiteout(place: str) -> bool:
    """Stand a whiteout where overlayfs looks for one; False where this user may not."""
    try:
        os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))
    except PermissionError:
        return False
    return True


def mark_opaque(place: str, marks: Marks) -> bool:
    """Mark a directory opaque for overlayfs; False where this user may not."""
    try:
        os.setxattr(place, marks.opaque, b"y")
    except OSError:
        return False
    return True
