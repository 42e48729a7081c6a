"""A runtime that fails under a request: what whoever caused it has seen is not the world's answer."""

from __future__ import annotations

import anyio
import pytest

from statefork.adapters.resources.memory import Call
from statefork.engine.errors import RuntimeDied, TransitionAborted
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.engine.ports import AdmissionRequest
from statefork.journal.events import ActionEnded, EvaluationRecorded
from statefork.journal.values import Identity
from tests.contract.engine_kit import House, put, request, until

pytestmark = pytest.mark.anyio


def asked(env: str, identity: Identity | None = None) -> AdmissionRequest:
    return AdmissionRequest(identity=identity, env=env, method="GET", url="http://notes.example/", kind="request")


async def fail_under(kernel: Kernel, request: AdmissionRequest) -> None:
    """A request whose server dies."""
    async with kernel.admit(request) as lease:
        lease.spoil("GET http://notes.example/: connection refused")


async def test_an_action_that_met_it_is_unknown_and_the_next_one_is_judged_by_itself() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        async with anyio.create_task_group() as tasks:

            async def act() -> None:
                with pytest.raises(RuntimeDied, match="connection refused") as caught:
                    await kernel.act("shop", {"type": "wait", "in": "db", "key": "bell"})
                assert caught.value.facts["environment"] == "shop"

            tasks.start_soon(act)
            await until(lambda: bool(kernel._conductor.live("shop").context.gate.live))
            await fail_under(kernel, request(kernel, "shop"))
            house.world.signal("bell")
        await put(kernel, "shop", "k", 1)
        ended = await house.events(ActionEnded)
        assert [event.outcome for event in ended] == ["unknown", "ok"]
        assert "connection refused" in ended[0].error


async def test_a_failure_that_only_a_request_of_its_own_met_spoils_nobody_else() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        await fail_under(kernel, request(kernel, "shop"))
        await put(kernel, "shop", "k", 1)


async def test_an_evaluation_that_met_it_gives_no_score() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")

        async def check(_: EvaluationContext) -> float:
            await fail_under(kernel, asked("shop"))
            return 1.0

        with pytest.raises(RuntimeDied):
            await kernel.evaluate("shop", "check", check)
        assert await house.events(EvaluationRecorded) == []


@pytest.mark.parametrize("op", ["reset", "create", "activate"])
async def test_a_page_that_met_it_while_it_was_restored_is_not_served(op: str) -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        env = "new" if op == "create" else "shop"
        if op == "activate":
            await kernel.park("shop")

        async def hook(call: Call) -> None:
            if (call.resource, call.method, call.when) == ("page", "bind", "after"):
                staged = kernel._conductor.live(env).staged
                assert staged is not None
                await fail_under(kernel, asked(env, staged.identity))

        house.world.hook = hook
        with pytest.raises(TransitionAborted, match="connection refused"):
            await {"reset": kernel.reset, "create": kernel.create, "activate": kernel.activate}[op](env)
        house.world.hook = None
        if op != "create":
            assert kernel.environments["shop"].generation == 1
            await put(kernel, "shop", "k", 1)
        assert house.unreached(kernel) == []
