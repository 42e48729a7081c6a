"""Who draws chance and time, and who is given them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from statefork.engine.conditions import STEP_S, Conditioning
from statefork.engine.contract import parse_contract
from statefork.engine.leases import Gate, lease_ids
from statefork.engine.live import Live
from statefork.engine.staging import Context
from statefork.engine.tickets import heard_conditions
from statefork.journal.values import Binding, Conditions, Identity

pytestmark = pytest.mark.anyio

TOLD = Conditions(seed="ab", now=1000.0)


class Clock:
    """One that the test moves."""

    at = 5000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class Page:
    """A resource in which code runs."""

    def __init__(self) -> None:
        self.heard: list[Conditions] = []

    async def set_conditions(self, binding: Binding, conditions: Conditions) -> None:
        self.heard.append(conditions)


class Rig:
    """One environment that serves."""

    def __init__(self, determinism: str, **resources: Any) -> None:
        text = f'[contract]\nname = "c"\ndeterminism = "{determinism}"\n[resources.page]\nadapter = "browser"\n'
        self.clock = Clock()
        self.gate = Gate(Identity(env="a", epoch=1, activation=1), 1, lease_ids(), self.clock.monotonic)
        self.gate.open(1)
        self.context = Context(self.gate)
        live = Live()
        live.context = self.context
        lives: Mapping[str, Live] = {"a": live}
        self.conditioning = Conditioning(parse_contract(text, "c.toml"), resources, self.clock, lives)

    async def told(self) -> tuple[str, float]:
        """What a server would be told with a request now."""
        async with self.gate.lease("GET /", "request") as lease:
            return heard_conditions(lease.conditions)


async def test_each_action_draws_anew_and_a_real_clock_is_not_told() -> None:
    rig = Rig("record", page=Page())
    first, second = rig.conditioning.begin(rig.gate), rig.conditioning.begin(rig.gate)
    assert first is not None
    assert second is not None
    assert first.seed != second.seed
    assert await rig.told() == (second.seed, 0.0)


async def test_what_is_given_holds_for_requests_at_once_and_for_one_action() -> None:
    page = Page()
    rig = Rig("record", page=page)
    rig.context.bindings["page"] = Binding(
        journal="j", resource="page", adapter="browser", branch="b", identity=rig.gate.identity
    )
    rig.conditioning.give("a", TOLD)
    rig.clock.at += 2.5
    assert await rig.told() == ("ab", 1002.5)
    assert rig.conditioning.begin(rig.gate, given=False) != TOLD  # an activation meanwhile takes nothing away
    begun = rig.conditioning.begin(rig.gate)
    await rig.conditioning.tell(rig.context, begun)
    assert page.heard == [TOLD]
    assert rig.conditioning.begin(rig.gate) != TOLD
    rig.conditioning.give("a", TOLD)
    rig.conditioning.give("a", None)
    assert rig.conditioning.begin(rig.gate) != TOLD


async def test_strict_stands_and_never_goes_back() -> None:
    rig = Rig("strict", page=Page())
    first = rig.conditioning.begin(rig.gate)
    assert first is not None
    rig.clock.at += STEP_S / 2
    assert await rig.told() == (first.seed, 5000.0)
    second = rig.conditioning.begin(rig.gate)
    assert second is not None
    assert second.now == 5000.0 + STEP_S


@pytest.mark.parametrize(("determinism", "resources"), [("off", {"page": Page()}), ("record", {"files": object()})])
async def test_nothing_is_drawn_where_nobody_would_read_it(determinism: str, resources: dict[str, Any]) -> None:
    rig = Rig(determinism, **resources)
    rig.conditioning.give("a", TOLD)
    assert rig.conditioning.begin(rig.gate) is None
    assert await rig.told() == ("", 0.0)
