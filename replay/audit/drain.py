"""I3: no publish while a lease on the old generation is live."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.heads import Head
from statefork.replay.audit.rows import Row

_NOTHING_TO_DRAIN = frozenset(
    {"create", "fork", "clone", "recover", "import"}
)  # nobody serves, or everybody died with the engine


class Drain(Checker):
    """Every action ended, or was fenced by a switch, before the next generation; a crash names those it cost."""

    invariant = "I3"
    rule = "no publish while a lease on the old generation is live"
    kinds = frozenset({kinds.DRAINED, kinds.PUBLISHED})

    def look(self, row: Row) -> Iterator[str]:
        if row.kind == kinds.DRAINED:
            self.looked_at += 1
            yield from self._drained(row)
        elif row.kind == kinds.PUBLISHED:
            self.looked_at += 1
            yield from self._published(row)

    def _drained(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        held = [item for item in row.items("held") if isinstance(item, dict)]
        fenced = [str(item.get("holder")) for item in held if item.get("how") == "fenced"]
        if fenced and head.op in kinds.CONTINUING:
            yield f"{head.op} of {head.env} went on over stragglers that still hold its branch: {', '.join(fenced)}"
        if head.actions and not fenced:
            yield f"{head.op} of {head.env} calls itself drained, but {_live(head)}"

    def _published(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        op, generation = row.text("op"), row.number("generation")
        lost = {item for item in row.items("lost_actions") if isinstance(item, int)}
        if lost and op != "recover":
            yield f"{op} published generation {generation} of {head.env} and names lost actions: only recovery may"
        if head.activation and op not in _NOTHING_TO_DRAIN and not head.drained_at:
            yield f"{op} published generation {generation} of {head.env} without a drain"
        live = sorted(set(head.actions) - lost)
        if live and op == "recover":
            yield f"recovery of {head.env} does not name action {live[0]}, which was under way at the crash"
        elif live and not head.fenced:
            yield f"{op} published generation {generation} of {head.env}, but {_live(head)}"


def _live(head: Head) -> str:
    number = min(head.actions)
    begun = head.actions[number]
    more = f" and {len(head.actions) - 1} more" if len(head.actions) > 1 else ""
    where = f"lease {begun.lease} on generation {begun.generation}, since position {begun.at}"
    return f"action {number} ({where}){more} is live"
