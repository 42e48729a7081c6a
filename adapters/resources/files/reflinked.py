"""Copies that share their bytes with the original until one side writes: btrfs, XFS and their like."""

from __future__ import annotations

from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.materialised import MaterialisedTrees
from statefork.engine.ports import Strategy


class ReflinkedTrees(MaterialisedTrees):
    """Every branch has a clone of every file: its inode is its own, its extents are shared."""

    def __init__(self, layers: Layers, *, reason: str, faster: str) -> None:
        super().__init__(layers, reflink=True)
        self._described = Strategy(name="reflink", reason=reason, faster=faster)

    def described(self) -> Strategy:
        """Reflink, and why."""
        return self._described
