"""What changed between two views of file trees, path by path."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from statefork.adapters.resources.files.tree import FILE, LINK, ROOT, Node, same
from statefork.engine.ports import Change
from statefork.journal.values import Json


def changes(before: Node, after: Node, sha256: Callable[[Node], str]) -> Iterator[Change]:
    """Added, removed and changed paths, in order; what was removed or added with a directory is listed too."""
    yield from _between(ROOT, before, after, sha256)


def _between(path: str, before: Node | None, after: Node | None, sha256: Callable[[Node], str]) -> Iterator[Change]:
    if before is None or after is None or not same(before, after, sha256):
        kind = "added" if before is None else "removed" if after is None else "changed"
        yield Change(kind=kind, name=path or ".", before=_facts(before, sha256), after=_facts(after, sha256))
    old = before.children if before is not None else {}
    new = after.children if after is not None else {}
    for name in sorted(old.keys() | new.keys()):
        yield from _between(f"{path}/{name}" if path else name, old.get(name), new.get(name), sha256)


def _facts(node: Node | None, sha256: Callable[[Node], str]) -> Json:
    if node is None:
        return None
    mode = f"{node.entry.mode:04o}"
    if node.entry.kind == FILE:
        return {"kind": "file", "mode": mode, "bytes": node.entry.size, "sha256": sha256(node)}
    if node.entry.kind == LINK:
        return {"kind": "link", "target": node.entry.target}
    return {"kind": "directory", "mode": mode}
