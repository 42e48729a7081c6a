"""Keeping stacks of layers shallow, so that the 200th seal costs what the 5th did.

Layers are merged as digits carry: eight of one size make one of the next. A stack over a base of any age is thus about
7·log8(n) layers deep after n seals, each path is linked log8(n) times in all, and no seal pays for the whole past.
"""

from __future__ import annotations

from collections.abc import Sequence

from statefork.adapters.resources.common import pulse
from statefork.adapters.resources.files.layers import Layers
from statefork.adapters.resources.files.tree import Marks

_FAN = 8
_RANK = "-k"  # a layer's id ends in -k1 when it holds eight layers, -k2 when it holds sixty-four, …


def rank(layer: str) -> int:
    """How many times a layer was merged: 0 for one that a seal made."""
    _, _, last = layer.rpartition(_RANK)
    return int(last) if last.isdecimal() and _RANK in layer else 0


def mergeable(layers: Sequence[str]) -> int:
    """How many layers on top of a stack (top first) are to be merged into one of the next rank; 0 for none.

    The lowest layer is never merged: it is the base that everybody shares.
    """
    upper = layers[:-1]
    if not upper:
        return 0
    count = 0
    while count < len(upper) and rank(upper[count]) == rank(upper[0]):
        count += 1
    return count if count >= _FAN else 0


def compacted(layers_on_disk: Layers, layers: tuple[str, ...], marks: Marks) -> tuple[str, ...]:
    """The same content in fewer layers."""
    while count := mergeable(layers):
        merged, below = layers[:count], layers[count:]
        suffix = f"{_RANK}{rank(merged[0]) + 1}"
        layers = (layers_on_disk.squash(merged, below, marks, suffix=suffix, pulse=pulse), *below)
    return layers
