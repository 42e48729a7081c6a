"""Offline, independent checkers of a journal and its stores: one for each rule that never bends.

They share no code with the engine: rows are read raw, decoded and hashed anew, and folded into a small account of their
own. Memory does not grow with the journal: a little per environment; what must be remembered for longer lies in a
private temporary database.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path

from statefork.journal.codec import Codec
from statefork.journal.log import Recorded
from statefork.replay.audit.bytes import Bytes
from statefork.replay.audit.layers import Layers
from statefork.replay.audit.privacy import Privacy
from statefork.replay.audit.reach import Reach
from statefork.replay.audit.report import Checked, Finding, Report, Unreadable
from statefork.replay.audit.rows import Row
from statefork.replay.audit.run import Audit, Make, Progress
from statefork.replay.audit.source import open_source
from statefork.replay.audit.stores import Stores

STORES = (Stores, Layers)
WORLD = (Bytes, Privacy)

__all__ = ["Checked", "Finding", "Report", "Unreadable", "audit", "audit_recorded", "journal_length"]


def audit(
    state: str | Path,
    *,
    stores: bool = True,
    world: bool = False,
    journal: str | None = None,
    progress: Progress | None = None,
    more: Iterable[Make] = (),
) -> Report:
    """Check the journal of a state directory, and what it refers to, against every rule.

    An engine may be running: the audit looks at one consistent moment. With ``stores``, blobs and sealed versions must
    be there; with ``world``, too, all that lies in the state directory is compared with the journal. ``journal`` is its
    address, where it is in a database. ``more`` checkers go along. Never raises for what it finds: what can't be read
    is in the report.
    """
    folder = Path(state)
    try:
        file = open_source(folder, journal)
    except Unreadable as error:
        return Report(journal="", events=0, environments=0, checked=(), unreadable=(str(error),))
    with closing(file):
        along = [*more]
        if stores or world:
            along += [partial(kind, folder) for kind in STORES]
        if world:
            along += [*(partial(kind, folder) for kind in WORLD), partial(Reach, folder, moved_on=file.moved_on)]
        with closing(file.heads()) as heads, closing(file.rows()) as rows:
            return Audit(along, kept_heads=heads).run(rows, progress)


def journal_length(state: str | Path, *, journal: str | None = None) -> int:
    """How many events an audit of the state directory would look at; 0 where they can't be counted."""
    try:
        with closing(open_source(Path(state), journal)) as file:
            return file.head
    except Unreadable:
        return 0


def audit_recorded(recorded: Iterable[Recorded]) -> Report:
    """The same for events that were read elsewhere (a journal in memory): without stores."""
    codec = Codec()
    rows = (
        Row(
            position=one.position,
            stream=one.stream,
            version=one.version,
            digest=one.hash,
            raw=codec.encode(one.event),
        )
        for one in recorded
    )
    return Audit().run(rows)
