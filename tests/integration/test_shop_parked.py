"""Case 14 and 15 on the real shop: a parked environment costs a page to nobody, and is as good as any other."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.resources.browser.actions import Goto
from statefork.engine.capsule import Phase
from statefork.engine.errors import EnvironmentRetired
from statefork.journal.events import EnvironmentActivated
from statefork.journal.values import Branch
from statefork.worlds.shop import agents, evaluators
from statefork.worlds.shop.agents import SITE
from tests.integration.shop_kit import contexts, events, judged, needs_shop, shopper

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.browser,
    pytest.mark.timeout(600),
    needs_shop,
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


async def alive(engine: Engine) -> set[str]:
    """The environments that any resource has something open for."""
    return {
        handle.env
        for resource in engine.kernel.resources.values()
        async for handle in resource.inventory()
        if isinstance(handle, Branch)
    }


async def shown(env: str, state: Path) -> dict[str, Any]:
    """What ``statefork show`` says of it."""
    command = [sys.executable, "-m", "statefork", "show", env, "--state", str(state), "--json"]
    found: dict[str, Any] = json.loads((await anyio.run_process(command)).stdout)
    return found


async def fetch(env: Environment, path: str) -> httpx.Response:
    """A request of a client that knows nothing of statefork."""
    async with httpx.AsyncClient(base_url=env.base_url("shop"), trust_env=False, timeout=30) as client:
        return await client.get(path)


async def test_a_parked_environment_is_forked_compared_and_retired_without_coming_to_life(shop: Engine) -> None:
    parent = await shop.create("parent")
    agent = shopper(parent)
    await agents.begin_checkout(agent)
    (Path(str(parent.bindings["media"].address["path"])) / "witness.txt").write_text("of the parent")
    await parent.park()
    parked_at = parent.capsule.moment
    assert (parent.capsule.phase, await alive(shop), await contexts(shop)) == (Phase.PARKED, set(), 0)

    (child,) = await shop.fork("parent", names=["child"])
    assert (await fetch(child, "/media/witness.txt")).text == "of the parent", "ready means reachable"
    async with serve_control(shop):
        assert (await shown("child", shop.state))["sites"] == {"shop.example": child.base_url("shop")}
        assert (await shown("parent", shop.state))["sites"] == {}
    assert (await judged(child, evaluators.in_mid_checkout, agent)).failed == ()
    assert (await alive(shop), await contexts(shop)) == ({"child"}, 1)

    seen = await child.act(Goto(f"{SITE}/accounts/profile/"))
    assert agent.customer in seen.text, "the login is the parent's"
    changes = await shop.diff("parent", (await child.snapshot()))
    assert {change.name for change in changes.resources["browser"].changes}
    assert "media" not in changes.resources
    assert (await alive(shop), await contexts(shop)) == ({"child"}, 1)

    await child.retire()
    (other,) = await shop.fork(parked_at, names=["other"])
    clone = await shop.clone("parent", "clone")
    assert (await judged(clone, evaluators.in_mid_checkout, agent)).failed == ()
    assert (await alive(shop), await contexts(shop)) == ({"other", "clone"}, 2)
    assert (parent.capsule.phase, parent.capsule.moment) == (Phase.PARKED, parked_at)
    assert len(await events(shop, "parent", EnvironmentActivated)) == 1, "once, when it was created"

    await agents.abandon(shopper(other))
    await parent.activate()
    await agents.finish_to_own_address(agent)
    wanted = evaluators.ordered(delivery="Bicycle", quantity=1)
    assert (await judged(parent, wanted, agent)).failed == ()
    assert (await judged(clone, evaluators.in_mid_checkout, agent)).failed == ()

    await parent.park()
    await parent.retire()
    assert (await alive(shop), await contexts(shop)) == ({"other", "clone"}, 2)
    with pytest.raises(EnvironmentRetired):
        await parent.activate()
    (late,) = await shop.fork(parked_at, names=["late"])  # its history can still be forked
    assert (await judged(late, evaluators.in_mid_checkout, agent)).failed == ()


async def test_writes_survive_being_parked_three_times(shop: Engine) -> None:
    env = await shop.create("env")
    agent = shopper(env)
    for pieces, article in enumerate(agent.articles, start=1):
        await agent.put_in_basket(article)
        media = Path(str(env.bindings["media"].address["path"]))
        (media / f"witness-{pieces}.txt").write_text(article.title)
        await env.park()
        assert await contexts(shop) == 0
    seen = await env.act(Goto(f"{SITE}/basket/"))
    assert all(article.title in seen.text for article in agent.articles)
    for pieces, article in enumerate(agent.articles, start=1):
        assert (await fetch(env, f"/media/witness-{pieces}.txt")).text == article.title
