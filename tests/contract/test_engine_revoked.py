"""What was revoked is unknown for ever, also when it was all but done (I9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statefork.engine.attempts import Attempts
from statefork.engine.errors import LeaseRevoked
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.journal.events import ActionEnded, EvaluationRecorded
from tests.contract.engine_kit import House, put

pytestmark = pytest.mark.anyio


def revoke(kernel: Kernel) -> None:
    """As a drain does at its deadline."""
    context = kernel._conductor.lives["shop"].context
    assert context is not None
    context.gate.revoke_all("a transition did not wait any longer")


@pytest.mark.parametrize("action", [{"type": "put", "key": "k", "value": 1}, {"type": "fail", "key": "k"}])
async def test_an_action_that_is_revoked_between_its_end_and_its_record(
    action: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Callable[..., Awaitable[Any]] = Attempts.run
    house = House()

    async def revoked_just_then(self: Attempts, *args: Any, **kwargs: Any) -> Any:
        answer = await run(self, *args, **kwargs)
        revoke(kernel)
        return answer

    async with house.open() as kernel:
        await kernel.create("shop")
        with monkeypatch.context() as patched:
            patched.setattr(Attempts, "run", revoked_just_then)
            with pytest.raises(LeaseRevoked):
                await kernel.act("shop", {"in": "db", **action})
        (ended,) = [event for event in await house.events() if isinstance(event, ActionEnded)]
        assert ended.outcome == "unknown"
        await put(kernel, "shop", "k", 2)


async def test_a_verdict_that_is_revoked_before_it_is_recorded_is_none() -> None:
    house = House()

    async def check(context: EvaluationContext) -> float:
        revoke(kernel)
        return 1.0

    async with house.open() as kernel:
        await kernel.create("shop")
        with pytest.raises(LeaseRevoked):
            await kernel.evaluate("shop", "check", check)
        assert await house.events(EvaluationRecorded) == []
