"""The rolling audit: what is there, and then each new event of an engine that goes on, from another process.

It looks in short reads, so that the writer is never held up, and remembers what the audit of a whole journal does. The
clock is the caller's: ``idle`` waits, and says whether to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

from statefork.replay.audit.report import Finding, Report, Unreadable
from statefork.replay.audit.run import Audit, Make
from statefork.replay.audit.source import EVERY, Source, open_source
from statefork.replay.audit.stores import Stores

BATCH_EVENTS = 2_000  # in one read; how often the caller is asked whether to go on


def follow(
    state: str | Path,
    *,
    told: Callable[[Finding | str], None],
    idle: Callable[[], bool],
    looked: Callable[[int, int], bool],
    stores: bool = True,
    journal: str | None = None,
    more: Iterable[Make] = (),
) -> Report:
    """Audit a journal as it grows.

    ``told`` gets each finding, and each sentence of what can't be read, as soon as it is known. ``looked`` is told how
    far the audit is and where the journal ends, and ``idle`` is called when there is nothing more to look at; both say
    whether to go on. What is said of a journal as a whole (its end, its sealed versions) comes last. Never raises for
    what it finds.
    """
    folder = Path(state)
    try:
        file = open_source(folder, journal)
    except Unreadable as error:
        told(str(error))
        return Report(journal="", events=0, environments=0, checked=(), unreadable=(str(error),))
    along = [partial(Stores, folder)] if stores else []
    with closing(file), Audit([*more, *along]) as audit:
        _follow(file, audit, told, idle, looked)
        return audit.report()


def _follow(
    file: Source,
    audit: Audit,
    told: Callable[[Finding | str], None],
    idle: Callable[[], bool],
    looked: Callable[[int, int], bool],
) -> None:
    unread = 0

    def tell_unreadable() -> None:
        nonlocal unread
        for sentence in audit.unreadable[unread:]:
            told(sentence)
        unread = len(audit.unreadable)

    def look(after: int, most: int) -> tuple[int, int]:
        """Look at some events; the last position, and how many there were."""
        count = 0
        with closing(file.rows(after, most)) as rows:
            for row in rows:
                for finding in audit.look(row):
                    told(finding)
                after, count = row.position, count + 1
        tell_unreadable()
        return after, count

    try:
        position = 0
        going_on = True
        while going_on:
            position, count = look(position, BATCH_EVENTS)
            if count:
                going_on = looked(position, file.head)
            else:
                file.look_away()
                going_on = idle()
            file.look_again()
        if count < BATCH_EVENTS:  # else the caller left before the end, and nothing is said of the whole
            look(position, EVERY)
            with closing(file.heads()) as heads:
                audit.keeps(heads)
                for finding in audit.finish():
                    told(finding)
        else:
            audit.note(f"the audit was ended at position {position} of {file.head}")
    except Unreadable as error:
        audit.cannot(str(error))
    tell_unreadable()
