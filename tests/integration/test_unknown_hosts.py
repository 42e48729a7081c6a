"""An address at which an environment has nobody: whoever goes there is told, and sees what the gateway said instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.actions import Click, Goto, NewTab
from statefork.adapters.interfaces.cli.faults import exit_status
from statefork.adapters.interfaces.python import open_engine
from statefork.engine.errors import ActionFailed

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

CONTRACT = """
[contract]
name = "nothing"

[resources.browser]
adapter = "browser"
"""
WHY = "unknown.example is not a host of this environment's world"


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def test_going_to_a_host_that_the_world_does_not_have_fails(tmp_path: Path) -> None:
    (tmp_path / "nothing.toml").write_text(CONTRACT)
    async with open_engine(tmp_path / "nothing.toml", state=tmp_path / "state") as engine:
        env = await engine.create("a")
        for action in (Goto("http://unknown.example/a?b"), NewTab("http://unknown.example/")):
            with pytest.raises(ActionFailed, match=WHY) as failed:
                await env.act(action)
            assert exit_status(failed.value.code) == 1
            assert failed.value.seen.url.startswith("http://unknown.example/")
            assert "unknown_host" in failed.value.seen.text
        with pytest.raises(ActionFailed, match="it is not a host of this environment's world, or not one for https"):
            await env.act(Goto("https://unknown.example/"))
        result = await engine.replay("a")
        assert (result.exact, result.actions) == (True, 3)
        with pytest.raises(ActionFailed):  # an action that is not there to be done is not told as a host
            await env.act(Click(selector="#nowhere", timeout_ms=50))
