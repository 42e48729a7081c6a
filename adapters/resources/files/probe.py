"""Which way of branching works here: found out by doing it in the state directory, the fastest first."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Literal

from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.mounts import Overlay, detach, mount_overlay
from statefork.adapters.resources.files.overlay import OverlayTrees, Variant, release_mounts
from statefork.adapters.resources.files.plain import PlainTrees
from statefork.adapters.resources.files.reflinked import ReflinkedTrees
from statefork.adapters.resources.files.strategy import TreeStrategy
from statefork.adapters.resources.files.tree import DIRECTORY, FILE, TRUSTED, USER, WHITEOUT, scan
from statefork.adapters.resources.files.userns import namespaces_allowed
from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.reflink import probe_reflink
from statefork.engine.errors import MissingDependency

Choice = Literal["auto", "overlay", "userns", "reflink", "copy"]

ROOT_OVERLAY = Variant("overlay", TRUSTED, ("redirect_dir=on", "index=off", "metacopy=off", "volatile"))
USER_OVERLAY = Variant("overlay (user namespace)", USER, ("userxattr", "volatile"))


def choose(layers: Layers, wanted: Choice = "auto", overlays: type[OverlayTrees] = OverlayTrees) -> TreeStrategy:
    """The first strategy that works, or the wanted one; ``overlays`` is the class of those that mount.

    Raises MissingDependency where the wanted one does not work here.
    """
    directory = layers.ledger.root
    for left in [*directory.glob(".overlay-*"), *directory.glob(".userns-*")]:  # of an engine killed while it tried
        release_mounts(left)
        remove_tree(left)
    reasons = []
    for choice, variant in (("overlay", ROOT_OVERLAY), ("userns", USER_OVERLAY)):
        if wanted in ("auto", choice):
            fault = overlay_fault(directory, variant)
            if not fault:
                return overlays(layers, variant, reason=_tried(), faster="")
            reasons.append(f"{variant.name}: {fault}")
    if wanted in ("auto", "reflink"):
        reflink = probe_reflink(directory)
        if reflink.works:
            reasons.append(f"reflink: {reflink.reason}")
            return ReflinkedTrees(layers, reason="; ".join(reasons), faster=_faster(directory))
        reasons.append(f"reflink: {reflink.reason}")
    if wanted in ("auto", "copy"):
        reasons.append("copy: works everywhere; a branch copies the tree, a seal what changed")
        return PlainTrees(layers, reason="; ".join(reasons), faster=_faster(directory))
    raise MissingDependency(
        f"{layers.ledger.resource}: strategy {wanted!r} does not work here ({'; '.join(reasons)})",
        hint="Take the strategy out of the contract: another one is then chosen",
        resource=layers.ledger.resource,
    )


def _tried() -> str:
    names = "reads, writes, whiteouts, opaque directories, renames"
    return f"{names}, freezing and the swap under an open path were tried here, and work"


def _faster(directory: Path) -> str:
    as_root = "overlayfs: run the engine as root on Linux 6.5 or later, with the state directory on ext4, XFS or btrfs"
    if os.geteuid() != 0 and namespaces_allowed(directory):
        return f"{as_root}; or without root as `unshare --user --map-root-user --mount statefork up …`"
    return as_root


def overlay_fault(directory: Path, variant: Variant) -> str:
    """Why overlays can't be used in a directory; empty when all that we need of them was done there and worked."""
    directory.mkdir(parents=True, exist_ok=True)
    trial = directory / f".overlay-{secrets.token_hex(6)}"
    try:
        _try_overlay(trial, variant)
    except OSError as error:
        return str(error.strerror or error)
    except _Wrong as wrong:
        return str(wrong)
    finally:
        with contextlib.suppress(OSError):
            release_mounts(trial)
        remove_tree(trial)
    return ""


class _Wrong(Exception):
    """Something was accepted and then not done."""


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise _Wrong(what)


def _try_overlay(trial: Path, variant: Variant) -> None:
    for name in ("base/old", "base/moved", "up", "work", "up2", "work2", "view"):
        (trial / name).mkdir(parents=True)
    (trial / "base/file").write_text("below")
    (trial / "base/gone").write_text("below")
    (trial / "base/old/inner").write_text("below")
    (trial / "base/moved/inner").write_text("below")
    view = trial / "view"
    overlay = mount_overlay([trial / "base"], trial / "up", trial / "work", variant.options)
    try:
        overlay.attach(view)
        _try_writes(trial, view, variant)
        _try_freeze(view, overlay)
        successor = mount_overlay([trial / "up", trial / "base"], trial / "up2", trial / "work2", variant.options)
        try:
            successor.attach(view, beneath=True)
            detach(view)
            _expect((view / "file").read_text() == "above", "the swapped mount shows something else")
            (view / "file").write_text("later")
            _expect((trial / "up/file").read_text() == "above", "a write reached the sealed layer")
        finally:
            successor.close()
    finally:
        overlay.close()


def _try_writes(trial: Path, view: Path, variant: Variant) -> None:
    (view / "file").write_text("above")
    (view / "gone").unlink()
    (view / "old/inner").unlink()
    (view / "old").rmdir()
    (view / "old").mkdir()
    entries = scan(trial / "up", variant.marks).entries
    kinds = {path: entry.kind for path, entry in entries.items()}
    _expect(kinds.get("file") == FILE and (trial / "base/file").read_text() == "below", "a write reached the base")
    _expect(kinds.get("gone") == WHITEOUT, "a deletion left no whiteout")
    _expect(kinds.get("old") == DIRECTORY and entries["old"].opaque, "a replaced directory is not marked opaque")
    if variant is ROOT_OVERLAY:
        (view / "moved").rename(view / "renamed")
        _expect(scan(trial / "up", variant.marks).redirects, "a renamed directory is not marked as redirected")


def _try_freeze(view: Path, overlay: Overlay) -> None:
    with (view / "file").open("a"):
        try:
            overlay.set_read_only(on=True)
        except OSError as error:
            _expect(error.errno == errno.EBUSY, f"freezing with a writer fails strangely: {error.strerror}")
        else:
            raise _Wrong("a mount with a writer could be frozen")
    overlay.set_read_only(on=True)
    try:
        (view / "file").write_text("straggler")
    except OSError as error:
        _expect(error.errno == errno.EROFS, f"a write to a frozen mount fails strangely: {error.strerror}")
    else:
        raise _Wrong("a frozen mount took a write")
