"""The simulation with a checkpoint of the fold after every few events: engines go on from them, and every rule holds.

``rebuild == live`` at each close compares what was folded from a checkpoint with the fold of the whole journal.
"""

from __future__ import annotations

import msgspec
import pytest

from statefork.engine import ledger
from statefork.engine.checkpoint import Folded, fold
from statefork.engine.settings import Settings
from statefork.journal.log import Reader
from statefork.simulation.many import run_one
from statefork.simulation.plan import Plan

SEEDS = range(7_000, 7_016)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each opening began to read."""
    found: list[int] = []
    chosen = Plan.settings.fget
    assert chosen is not None

    def often(plan: Plan) -> Settings:
        return msgspec.structs.replace(chosen(plan), checkpoint_events=10)

    async def noting(journal: Reader, *, place: str) -> Folded:
        folded = await fold(journal, place=place)
        found.append(folded.begun)
        return folded

    monkeypatch.setattr(Plan, "settings", property(often))
    monkeypatch.setattr(ledger, "fold", noting)
    return found


def test_every_rule_holds_when_engines_go_on_from_checkpoints(begun: list[int]) -> None:
    for seed in SEEDS:
        outcome = run_one(seed)
        assert not outcome.rule, f"seed {seed}: {outcome.rule}: {outcome.message}\n" + "\n".join(outcome.trace)
    assert sum(position > 0 for position in begun) > len(begun) // 4
