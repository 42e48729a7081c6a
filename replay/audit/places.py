"""Whose state directory is being looked at, where several share a journal: the others' can't be seen from here."""

from __future__ import annotations

from pathlib import Path

from statefork.journal.errors import JournalError
from statefork.journal.marker import read_marker
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.report import Unreadable


def place_at(state: Path) -> str:
    """The directory's name in its journal; empty where the journal is its own. Raises Unreadable."""
    try:
        marker = read_marker(state)
    except JournalError as error:
        raise Unreadable(str(error)) from None
    return marker.place if marker is not None else ""


def unseen(heads: Heads, place: str) -> str:
    """What an audit of the stores of one place leaves out, as a sentence; empty where that is nothing."""
    others: dict[str, int] = {}
    for head in heads:
        if head.created_at and head.place != place:
            others[head.place] = others.get(head.place, 0) + 1
    if not others:
        return ""
    where = ", ".join(
        f"{count} in {heads.places.get(other) or 'an unknown directory'} (place {other or 'without a name'})"
        for other, count in sorted(others.items())
    )
    return (
        f"environments of other state directories: {where}; of these the journal was looked at, and not what lies there"
    )
