"""The shared browser is killed: every environment goes on from its last published generation, by being used again."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

import statefork
from statefork import Engine, Environment
from statefork.actions import Click, Fill, Goto, Wait
from statefork.adapters.resources.web import WebResource
from statefork.engine.errors import RuntimeDied
from statefork.journal.events import ActionEnded
from tests.integration.shop_kit import chromium, events, needs_shop, open_shop

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


async def kill_while_it_answers(engine: Engine, env: Environment) -> None:
    """SIGKILL of the server when it works on a request of the environment. It stands before a write lock of ours."""
    server = engine.kernel.resources["shop"]
    assert isinstance(server, WebResource)
    branch = engine.kernel.branches(env.name)["shop"]
    with closing(sqlite3.connect(str(env.bindings["db"].address["path"]), isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        while not await server.pending(branch):
            await anyio.lowlevel.checkpoint()
        (pid,) = server.process_ids()
        os.kill(pid, signal.SIGKILL)


async def test_a_killed_server_is_not_taken_for_the_shops_answer(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as engine:
        env = await engine.create("acting")
        await env.act(Goto("http://shop.example/catalogue/"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_while_it_answers, engine, env)
            with pytest.raises(RuntimeDied, match="failed under action click"):
                await env.act(Click(role="button", name="Add to basket", nth=0))
        seen = await env.act(Goto("http://shop.example/basket/"))  # by the server that was started instead
        assert "Your basket is empty" in seen.text
        ended = await events(engine, "acting", ActionEnded)
        assert [event.outcome for event in ended] == ["ok", "unknown", "ok"]
        assert (await env.snapshot()).generation == 2
    assert statefork.audit(tmp_path).clean
