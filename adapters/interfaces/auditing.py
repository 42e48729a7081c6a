"""The audit as scripts and commands run it: a store that nobody has mounted is mounted for as long as it looks."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from statefork.adapters.interfaces.store.keeping import visible
from statefork.replay.audit.report import Report
from statefork.replay.audit.run import Progress
from statefork.replay.auditing import audit as audit_what_is_visible

__all__ = ["audit"]


def audit(
    state: str | Path,
    *,
    stores: bool = True,
    world: bool = False,
    journal: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check the journal of a state directory, and what it refers to, against every rule that never bends.

    An engine may be running: the audit looks at one consistent moment and changes nothing. With ``stores``, blobs and
    sealed versions must be there. With ``world``, too, everything else that lies in the state directory is looked at:
    sealed bytes must be what was sealed, branches belong to one environment each, and whatever the journal does not
    reach is named. What databases on a server contain is not looked at; a note says how many versions that leaves out.
    ``journal`` is the journal's address, where it is in a database. A state store is mounted meanwhile, where it is not
    and this user may. Never raises for what it finds: what can't be read is in the report.
    """
    with visible(Path(state)) if stores or world else nullcontext():
        return audit_what_is_visible(state, stores=stores, world=world, journal=journal, progress=progress)
