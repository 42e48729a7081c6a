"""The shared browser is killed: every environment goes on from its last published generation, by being used again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import statefork
from statefork import Environment
from statefork.actions import Fill, Goto, Wait
from statefork.engine.errors import RuntimeDied
from tests.integration.shop_kit import chromium, needs_shop, open_shop

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.shop, needs_shop]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def kill_under(env: Environment, pid: int) -> None:
    """SIGKILL while an action waits for the page."""
    async with env.page() as page:
        os.kill(pid, signal.SIGKILL)
        await page.wait_for_selector("text=never there")


async def test_a_killed_browser_costs_what_was_not_published(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as engine:
        acting, idle, unused = [await engine.create(name) for name in ("acting", "idle", "unused")]
        await acting.act(Goto("http://shop.example/accounts/login/"))
        await acting.act(Fill(selector="#id_login-username", value="kept"))
        kept = await acting.snapshot()
        await acting.act(Fill(selector="#id_login-username", value="lost"))
        killed = chromium(engine).pid

        with pytest.raises(RuntimeDied) as raised:
            await kill_under(acting, killed)
        assert "last published generation" in raised.value.hint

        seen = await acting.act(Wait(selector="#id_login-username"))  # used again
        assert "kept" in seen.text
        assert (acting.capsule.head.op, acting.capsule.head.manifest) == (
            "recover",
            engine.kernel.world.generation(kept).manifest,
        )
        assert acting.capsule.head.lost_actions == (3, 4)
        assert (await idle.observe()).url.startswith("http://shop.example/")
        assert idle.capsule.head.op == "recover"
        assert unused.ref.generation == 1
    async with open_shop(tmp_path) as engine:  # closing parked all three, the dead one too
        assert engine.recovered.clean
    assert statefork.audit(tmp_path).clean
