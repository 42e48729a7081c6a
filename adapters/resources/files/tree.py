"""File trees as values: what a layer changes (an index), and what a stack of layers shows (a view).

An index lists the paths of one layer, parents before children. Besides directories, files and links it has whiteouts
(the path is gone), opaque directories (nothing below shows through) and redirected ones (a renamed directory: what is
below shows through from another path). Everything that reads a version (digest, diff, copies, squashing) works on
indexes, so that it needs neither a mount nor the privilege to read the marks in the layer itself.

Sockets, pipes and devices are no content: they mean nothing without the process that made them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from statefork.adapters.resources.reflink import Pulse, no_pulse

DIRECTORY, FILE, LINK, WHITEOUT = "d", "f", "l", "w"
ROOT = ""


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One path of a layer. ``mode`` has the permission bits alone; times are nanoseconds."""

    kind: str
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    uid: int = 0
    gid: int = 0
    target: str = ""  # of a link
    sha256: str = ""  # of a file, once somebody asked
    opaque: bool = False
    redirect: str = ""


class Marks(msgspec.Struct, frozen=True):
    """The names of overlayfs's extended attributes: ``trusted.`` for root, ``user.`` in a user namespace."""

    kind: str

    @property
    def opaque(self) -> str:
        """On a directory that hides what lies below it."""
        return f"{self.kind}.overlay.opaque"

    @property
    def redirect(self) -> str:
        """On a directory that shows what lies below from another path."""
        return f"{self.kind}.overlay.redirect"


TRUSTED, USER = Marks("trusted"), Marks("user")


class Index(msgspec.Struct, kw_only=True):
    """What one layer changes.

    ``mountable``: its whiteouts stand in the layer's directory too, as overlayfs wants, and its opaque directories are
    marked there with attributes of the kind ``marks`` (where it has any).
    """

    entries: dict[str, Entry]
    mountable: bool = True
    marks: str = ""

    def mountable_with(self, marks: Marks) -> bool:
        """Whether overlayfs would show the layer as this index says."""
        return self.mountable and self.marks in ("", marks.kind)

    @property
    def redirects(self) -> bool:
        """Whether a renamed directory shows what lies below from another path."""
        return any(entry.redirect for entry in self.entries.values())


def scan(directory: Path, marks: Marks | None = None, pulse: Pulse = no_pulse) -> Index:
    """The index of what lies in a directory; with ``marks``, of an overlay's upper directory."""
    entries: dict[str, Entry] = {}
    for path, place, status in walk(directory, pulse):
        if stat.S_ISDIR(status.st_mode):
            entries[path] = _entry(place, status, marks)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            entries[path] = _entry(place, status, None)
        elif marks is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            entries[path] = Entry(WHITEOUT)
    marked = marks is not None and any(entry.opaque or entry.redirect for entry in entries.values())
    return Index(entries=entries, marks=marks.kind if marks is not None and marked else "")


def walk(directory: Path, pulse: Pulse = no_pulse) -> Iterator[tuple[str, str, os.stat_result]]:
    """Path within the tree, path on disk and status of everything in a directory; parents first, names in order."""
    yield ROOT, str(directory), os.lstat(directory)
    pending = [(ROOT, str(directory))]
    while pending:
        pulse()
        within, place = pending.pop()
        with os.scandir(place) as found:
            items = sorted(found, key=lambda item: item.name)
        for item in items:
            path = f"{within}/{item.name}" if within else item.name
            yield path, item.path, item.stat(follow_symlinks=False)
        pending += [(f"{within}/{i.name}" if within else i.name, i.path) for i in items if _is_directory(i)]


def _is_directory(item: os.DirEntry[str]) -> bool:
    return item.is_dir(follow_symlinks=False)


def _entry(path: str, status: os.stat_result, marks: Marks | None) -> Entry:
    kind, size, target, opaque, redirect = DIRECTORY, 0, "", False, ""
    if stat.S_ISLNK(status.st_mode):
        kind, target = LINK, os.readlink(path)  # noqa: PTH115 - the text as it stands, not a Path made of it
    elif stat.S_ISREG(status.st_mode):
        kind, size = FILE, status.st_size
    elif marks is not None:
        opaque, redirect = _attribute(path, marks.opaque) == "y", _attribute(path, marks.redirect)
    return Entry(
        kind,
        mode=stat.S_IMODE(status.st_mode),
        size=size,
        mtime_ns=status.st_mtime_ns,
        uid=status.st_uid,
        gid=status.st_gid,
        target=target,
        opaque=opaque,
        redirect=redirect,
    )


def _attribute(path: str, name: str) -> str:
    try:
        return os.fsdecode(os.getxattr(path, name, follow_symlinks=False))
    except OSError:
        return ""


class Node:
    """A place in a view: its entry, and in which layer, under which path, its bytes lie."""

    __slots__ = ("children", "entry", "layer", "path")

    def __init__(self, entry: Entry, layer: str, path: str) -> None:
        self.entry = entry
        self.layer = layer
        self.path = path
        self.children: dict[str, Node] = {}

    def is_directory(self) -> bool:
        """Whether it can have children."""
        return self.entry.kind == DIRECTORY

    def copy(self) -> Node:
        """The same tree, to be changed on its own."""
        twin = Node(self.entry, self.layer, self.path)
        twin.children = {name: child.copy() for name, child in self.children.items()}
        return twin

    def find(self, path: str) -> Node | None:
        """The node at a path below, if there is one."""
        node: Node | None = self
        for part in PurePosixPath(path).parts:
            node = node.children.get(part) if node else None
        return node

    def walk(self, path: str = ROOT) -> Iterator[tuple[str, Node]]:
        """Everything from here down, parents before children, names in order."""
        yield path, self
        for name in sorted(self.children):
            yield from self.children[name].walk(f"{path}/{name}" if path else name)


def show(indexes: list[tuple[str, Index]]) -> Node:
    """What a stack of layers shows; the lowest layer comes first."""
    view = Node(Entry(DIRECTORY, mode=0o755), "", ROOT)
    for layer, index in indexes:
        lay(view, layer, index)
    return view


def shown(indexes: list[Index], path: str) -> bool:
    """Whether a stack of indexes, top first and without redirects, shows anything at a path."""
    ancestors = [path[:at] for at, character in enumerate(path) if character == "/"]
    for index in indexes:
        entry = index.entries.get(path)
        if entry is not None:
            return entry.kind != WHITEOUT
        if any(_hides(index.entries.get(ancestor)) for ancestor in ancestors):
            return False
    return False


def _hides(entry: Entry | None) -> bool:
    return entry is not None and (entry.kind != DIRECTORY or entry.opaque)


def lay(view: Node, layer: str, index: Index, *, keep_whiteouts: bool = False) -> None:
    """Put a layer on top of a view, in place.

    With ``keep_whiteouts`` the view is of some upper layers alone: it keeps what hides things further down.
    """
    below = view.copy() if index.redirects else view
    below_of = {ROOT: ROOT}  # directory of this layer to the path at which its lower part lies
    placed = {ROOT: view}
    for path, entry in index.entries.items():
        if path == ROOT:
            view.entry = entry if not keep_whiteouts or not view.entry.opaque else _opaque(entry)
            continue
        within, _, name = path.rpartition("/")
        parent = placed[within]  # an index has the directories on the way to everything that it has
        if entry.kind == DIRECTORY:
            below_of[path] = _below(below_of[within], name, entry)
            node = _directory(parent.children.get(name), below, below_of[path], entry, layer, path)
            parent.children[name] = placed[path] = node
        elif entry.kind == WHITEOUT and not keep_whiteouts:
            parent.children.pop(name, None)
        else:
            parent.children[name] = Node(entry, layer, path)


def _below(within: str, name: str, entry: Entry) -> str:
    if entry.redirect.startswith("/"):
        return entry.redirect.strip("/")
    return f"{within}/{entry.redirect or name}".strip("/")


def _directory(present: Node | None, below: Node, below_path: str, entry: Entry, layer: str, path: str) -> Node:
    hides = entry.opaque or (present is not None and present.entry.opaque)
    if entry.redirect:
        found = below.find(below_path)
        present = found.copy() if found else None
    elif entry.opaque:
        present = None
    if present is not None and not present.is_directory():
        hides = True  # a whiteout or file hid what lies further down, and still does
        present = None
    node = Node(_opaque(entry) if hides else entry, layer, path)
    if present is not None:
        node.children = present.children
    return node


def _opaque(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, opaque=True)


def file_digest(path: Path, pulse: Pulse = no_pulse) -> str:
    """SHA-256 of a file's bytes, in hex."""
    whole = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            whole.update(data)
            if len(data) == 1 << 20:
                pulse()
    return whole.hexdigest()


def tree_digest(view: Node, sha256: Callable[[Node], str]) -> str:
    """SHA-256, in hex, of paths, kinds, permission bits, link targets and bytes; not of times, owners or layers."""
    whole = hashlib.sha256()
    whole.update(msgspec.msgpack.encode(("statefork tree", 1)))
    for path, node in view.walk():
        whole.update(msgspec.msgpack.encode((os.fsencode(path), *_facts(node, sha256))))
    return whole.hexdigest()


def _facts(node: Node, sha256: Callable[[Node], str]) -> tuple[object, ...]:
    entry = node.entry
    if entry.kind == FILE:
        return entry.kind, entry.mode, entry.size, sha256(node)
    if entry.kind == LINK:
        return entry.kind, os.fsencode(entry.target)
    return entry.kind, entry.mode


def same(one: Node, two: Node, sha256: Callable[[Node], str]) -> bool:
    """Whether two nodes have the same content themselves; bytes are read only where nothing else tells."""
    if one.entry.kind != two.entry.kind or one.entry.size != two.entry.size:
        return False
    if one.layer == two.layer and one.path == two.path and one.entry.mode == two.entry.mode:
        return True
    return _facts(one, sha256) == _facts(two, sha256)
