"""File trees as plain files, for another journal on another machine: a list of what is where, and each content once.

``tree`` is MessagePack: for every path its kind, mode, time and, of a link, its target, parents first. The bytes of a
file lie beside it, under the SHA-256 of them. Owners are not carried: elsewhere they are other people. Who unpacks
trusts nothing: a path can't lead out of the tree, nothing is written through a link, and a program can't arrive with
the rights of somebody else.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from statefork.adapters.resources.files.layers import Layers, copy_entry, dress
from statefork.adapters.resources.files.tree import DIRECTORY, FILE, LINK, ROOT, Entry, Node, scan
from statefork.adapters.resources.reflink import Pulse
from statefork.engine.errors import ResourceFailed

TREE = "tree"
_FORMAT = 1
_TREE_BYTES_MAX = 256 * 1024 * 1024  # it is read whole
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LENT_RIGHTS = stat.S_ISUID | stat.S_ISGID


class Item(msgspec.Struct, frozen=True, array_like=True):
    """One path of a packed tree. Names are bytes: file systems know no text."""

    path: bytes
    kind: str
    mode: int
    mtime_ns: int
    target: bytes = b""  # of a link
    sha256: str = ""  # of a file


class Packed(msgspec.Struct, frozen=True):
    """A whole packed tree."""

    format: int
    items: list[Item]


def pack_tree(
    layers: Layers, stack: tuple[str, ...], directory: Path, sha256: Callable[[Node], str], name: str, pulse: Pulse
) -> None:
    """Write what a stack of layers shows. Raises ResourceFailed for what may not be unpacked elsewhere."""
    items: list[Item] = []
    for path, node in layers.view(stack).walk():
        entry = node.entry
        digest = sha256(node) if entry.kind == FILE else ""
        item = Item(os.fsencode(path), entry.kind, entry.mode, entry.mtime_ns, os.fsencode(entry.target), digest)
        if why := _unfit(item):
            raise _refused(name, item.path, why)
        items.append(item)
        if digest and not (directory / digest).exists():
            source = f"{layers.tree(node.layer)}/{node.path}"
            copy_entry(source, str(directory / digest), _plain(entry.size), reflink=False, pulse=pulse)
    (directory / TREE).write_bytes(msgspec.msgpack.encode(Packed(_FORMAT, items)))


def unpack_tree(layers: Layers, directory: Path, name: str, pulse: Pulse) -> str:
    """A new layer that holds a packed tree; its id. Raises ResourceFailed for what ``pack_tree`` does not write."""
    items = list(_checked(directory, name))
    with layers.ledger.new_layer("import") as (layer, place):
        root = place / "tree"
        for item in items:
            pulse()
            target = f"{root}/{os.fsdecode(item.path)}" if item.path else str(root)
            if item.kind == DIRECTORY:
                Path(target).mkdir(mode=0o700)
            else:
                source = directory / item.sha256 if item.kind == FILE else directory
                size = source.stat().st_size if item.kind == FILE else 0
                copy_entry(str(source), target, _entry(item, size), reflink=False, pulse=pulse)
        for item in reversed(items):
            if item.kind == DIRECTORY:
                dress(f"{root}/{os.fsdecode(item.path)}" if item.path else str(root), _entry(item))
        layers.write_index(layer, scan(root, pulse=pulse), place)
    return layer


def _checked(directory: Path, name: str) -> Iterator[Item]:
    if (directory / TREE).is_file() and (directory / TREE).stat().st_size > _TREE_BYTES_MAX:
        raise ResourceFailed(f"{name}: the list of a packed tree has at most {_TREE_BYTES_MAX} bytes", resource=name)
    try:
        packed = msgspec.msgpack.decode((directory / TREE).read_bytes(), type=Packed)
    except (OSError, ValueError) as error:
        raise ResourceFailed(f"{name}: the packed tree can't be read: {error}", resource=name) from error
    if packed.format != _FORMAT:
        raise ResourceFailed(f"{name}: the packed tree has format {packed.format}, not {_FORMAT}", resource=name)
    kinds: dict[bytes, str] = {}
    for item in packed.items:
        within, _, last = item.path.rpartition(b"/")
        why = _unfit(item)
        if not kinds:
            why = why or ("" if item.path == b"" and item.kind == DIRECTORY else "the first is not the tree itself")
        elif item.path in kinds:
            why = why or "it stands there twice"
        elif _is_no_name(last) or item.path[:1] == b"/" or kinds.get(within) != DIRECTORY:
            why = why or "it does not lie in a directory of the tree"
        if not why and item.kind == FILE and not (directory / item.sha256).is_file():
            why = "its bytes are missing"
        if why:
            raise _refused(name, item.path, why)
        kinds[item.path] = item.kind
        yield item
    if not kinds:
        raise ResourceFailed(f"{name}: the packed tree is empty", resource=name)


def _is_no_name(name: bytes) -> bool:
    return name in (b"", b".", b"..") or b"\0" in name


def _unfit(item: Item) -> str:
    """Why a path is not carried; empty when it is."""
    if item.kind not in (DIRECTORY, FILE, LINK):
        return f"{item.kind!r} is no kind of file"
    if item.kind == FILE and not _SHA256.fullmatch(item.sha256):
        return "its bytes have no name"
    if item.kind == LINK and (not item.target or b"\0" in item.target or _leads_out(item)):
        return f"the link leads out of the tree, to {os.fsdecode(item.target)!r}"
    if item.mode & ~0o7777 or (item.kind == FILE and item.mode & _LENT_RIGHTS):
        return f"its mode {item.mode:o} lends rights of its owner"
    return ""


def _leads_out(item: Item) -> bool:
    """Only ``..`` at the beginning is counted: behind a name it may lead anywhere, for the name may be a link's."""
    parts = PurePosixPath(os.fsdecode(item.target)).parts
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return parts[:1] == ("/",) or up > item.path.count(b"/") or ".." in parts[up:]


def _entry(item: Item, size: int = 0) -> Entry:
    return Entry(
        item.kind,
        mode=item.mode,
        size=size,
        mtime_ns=item.mtime_ns,
        uid=os.geteuid(),
        gid=os.getegid(),
        target=os.fsdecode(item.target),
    )


def _plain(size: int) -> Entry:
    return Entry(FILE, mode=0o600, size=size, uid=os.geteuid(), gid=os.getegid())


def _refused(name: str, path: bytes, why: str) -> ResourceFailed:
    shown = os.fsdecode(path).encode(errors="backslashreplace").decode() or ROOT or "."
    return ResourceFailed(f"{name}: {shown!r} is not carried: {why}", resource=name, path=shown)
