"""I8: an execution context is ready only when every resource of the contract is bound and has passed its probe.

Every activation names the resources that were bound and probed. Journals of engines that did not record this yet are
not found fault with: what they say nothing of is counted, and told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from statefork.replay.audit import heads as kinds
from statefork.replay.audit.checker import Checker
from statefork.replay.audit.contracts import Contracts
from statefork.replay.audit.heads import Heads
from statefork.replay.audit.rows import Row


class Readiness(Checker):
    """Each activation probed what its contract asks for; nothing is served by an environment that is not bound."""

    invariant = "I8"
    rule = "ready only when every resource is bound and probed"
    kinds = frozenset({kinds.CONTRACT, kinds.ACTIVATED, kinds.INPUT, kinds.EVALUATED})

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        self._contracts = Contracts()
        self._telling: dict[str, int] = {}  # place -> a run whose activations name their probes
        self._silent = 0

    def look(self, row: Row) -> Iterator[str]:
        if row.kind == kinds.CONTRACT:
            self._contracts.register(row)
        elif row.kind == kinds.ACTIVATED:
            yield from self._activated(row)
        else:
            self.looked_at += 1
            head = self.heads.of(row.text("env"))
            if head.generation and not head.activation:
                what = "an evaluation" if row.kind == kinds.EVALUATED else f"{row.text('method')} {row.text('url')}"
                yield f"{what} (lease {row.number('lease')}) was served by {head.env}, of which nothing is bound"

    def _activated(self, row: Row) -> Iterator[str]:
        head = self.heads.of(row.text("env"))
        where = f"activation {row.number('activation')} of {head.env}@{row.number('generation')}"
        if "probed_ms" not in row.data:
            self._silent += 1
            if self._telling.get(head.place, 0) == head.run and head.run:
                yield f"{where} does not say what was probed, as others of this run do"
            return
        self.looked_at += 1
        self._telling[head.place] = head.run
        probed = row.table("probed_ms")
        wanted = self._contracts.of(head.contract)
        if wanted is None:
            return  # a finding of I4
        for name, spec in wanted.items():
            if name not in probed:
                yield f"{where} was called ready before {name} ({spec.adapter}) was bound and probed"
        for name, took in probed.items():
            if name not in wanted:
                yield f"{where} names a probe of {name}, which its contract does not know"
            elif not _is_duration(took):
                yield f"{where} names a probe of {name} that took {took!r} ms: it was not carried out"

    def notes(self) -> Iterator[str]:
        if self._silent:
            yield f"{self._silent} activations do not say what was probed: an engine that did not record it made them"


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
