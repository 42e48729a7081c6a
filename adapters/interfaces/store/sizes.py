"""Sizes as people write and read them."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = (1 << shift for shift in (10, 20, 30, 40))
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of ``8G``, ``512M``, ``1.5 TiB`` or a plain number. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size: write it like 512M, 8G or 1T")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def show_size(count: int) -> str:
    """In the largest unit of which there is at least one."""
    for name, unit in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
