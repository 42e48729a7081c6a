"""What no two resources of a contract may share: a path, as a whole or in part, and a host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from statefork.journal.values import Json

_ALONE = {"base": "path", "host": "host"}  # options, and what people call them


def shared(options: Mapping[str, Mapping[str, Json]]) -> Iterator[tuple[str, str, str]]:
    """Each resource that has what an earlier one has: its name, the option, and the words for it."""
    for option, noun in _ALONE.items():
        taken: list[tuple[str, str]] = []
        for name, values in options.items():
            value = values.get(option)
            if not isinstance(value, str):
                continue
            for other, held in taken:
                if _overlap(option, value, held):
                    how = "too" if value == held else "which overlaps"
                    gap = " " if value == held else ", "
                    yield name, option, f"two resources on one {noun}: {other!r} has {held!r}{gap}{how}"
            taken.append((name, value))


def _overlap(option: str, one: str, two: str) -> bool:
    if option != "base":
        return one.casefold() == two.casefold()
    a, b = _normal(one), _normal(two)
    return a.is_relative_to(b) or b.is_relative_to(a)


def _normal(path: str) -> PurePosixPath:
    parts: list[str] = []
    for part in PurePosixPath(path).parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)
