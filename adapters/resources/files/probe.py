"""Which way of branching works here: found out by doing it in the state directory, the fastest first."""

from __future__ import annotations

from typing import Literal

from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.plain import PlainTrees
from statefork.adapters.resources.files.reflinked import ReflinkedTrees
from statefork.adapters.resources.files.strategy import TreeStrategy
from statefork.adapters.resources.reflink import probe_reflink
from statefork.engine.errors import MissingDependency

Choice = Literal["auto", "reflink", "copy"]


def choose(layers: Layers, wanted: Choice = "auto") -> TreeStrategy:
    """The first strategy that works, or the wanted one. Raises MissingDependency where that does not work here."""
    reflink = probe_reflink(layers.ledger.root)
    if wanted in ("auto", "reflink") and reflink.works:
        return ReflinkedTrees(layers, reason=reflink.reason, faster="")
    if wanted in ("auto", "copy"):
        return PlainTrees(layers, reason=reflink.reason, faster="")
    raise MissingDependency(f"{layers.ledger.resource}: strategy {wanted!r} does not work here: {reflink.reason}")
