"""Whole copies: right everywhere, and the quickest there is for trees of a few files."""

from __future__ import annotations

from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.materialised import MaterialisedTrees
from statefork.engine.ports import Strategy


class PlainTrees(MaterialisedTrees):
    """Every branch has a copy of every file."""

    def __init__(self, layers: Layers, *, reason: str, faster: str) -> None:
        super().__init__(layers, reflink=False)
        self._described = Strategy(name="copy", reason=reason, faster=faster)

    def described(self) -> Strategy:
        """Copy, and why."""
        return self._described
