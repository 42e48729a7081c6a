"""The first thing that went otherwise, in full: recorded and seen side by side, in words and in pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from statefork.adapters.interfaces.cli.output import Out, short
from statefork.adapters.interfaces.cli.sentences import counted
from statefork.adapters.interfaces.control.client import Control
from statefork.adapters.interfaces.pictures import beside
from statefork.engine.errors import MissingDependency
from statefork.journal.errors import StateforkError

FOLDER = "screenshots"
SIDES = ("recorded", "seen")
_ROWS = ("outcome", "status", "error", "url", "title", "digest")


def say_divergence(out: Out, divergence: Mapping[str, Any]) -> None:
    """Both sides, and the difference of their texts."""
    out.say(f"  first divergence: {divergence['step']}: {divergence['what']} (position {divergence['position']})")
    rows = []
    for name in _ROWS:
        told = [divergence[side][name] for side in SIDES]
        if any(told):
            cells = [short(str(one)) if name == "digest" else str(one or "") for one in told]
            rows.append((name, *cells, "" if told[0] == told[1] else "≠"))
    out.table(("", *SIDES, ""), rows)
    if divergence["diff"]:
        out.say(divergence["diff"])


def draw(state: Path, divergence: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write what there is of the pictures of both sides, and one of both beside each other; the paths.

    What can't be read, drawn or written is told in ``why``: the verdict is worth more than its pictures.
    """
    told: dict[str, Any] = {"recorded": "", "seen": "", "difference": "", "regions": 0, "why": ""}
    digests = {side: str(divergence[side]["screenshot"]) for side in SIDES if divergence[side]["screenshot"]}
    if not digests:
        told["why"] = "no screenshot was taken"
        return told
    try:
        pictures = {side: Control(state).blob(digest) for side, digest in digests.items()}
        folder.mkdir(parents=True, exist_ok=True)
        for side, png in pictures.items():
            (folder / f"{side}.png").write_bytes(png)
            told[side] = str(folder / f"{side}.png")
        if len(pictures) < len(SIDES):
            (only,) = pictures
            told["why"] = f"there is a screenshot of what was {only} only"
            return told
        made = beside(pictures["recorded"], pictures["seen"])
        (folder / "difference.png").write_bytes(made.png)
        told |= {"difference": str(folder / "difference.png"), "regions": len(made.regions)}
    except (StateforkError, MissingDependency) as error:
        told["why"] = f"{error.message} {error.hint}".strip()
    except OSError as error:
        told["why"] = f"pictures can't be written to {folder}: {error.strerror}"
    return told


def picture_lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Where the pictures are."""
    if told["difference"]:
        framed = counted(told["regions"], "region")
        yield f"  pictures: {told['difference']} (recorded, seen, and {framed} framed where they differ)"
    else:
        yield from (f"  picture of what was {side}: {told[side]}" for side in SIDES if told[side])
    if told["why"]:
        yield f"  {told['why']}"
