"""A page whose script never ends: the action that began it ends at its deadline, and costs nobody else anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.engine.kernel import ActResult, DrainPolicy
from statefork.journal.events import ActionEnded
from tests.integration.drain_kit import Scene, open_scene

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

SITE = "http://notes.localhost"
BROWSER = """
[resources.browser]
adapter = "browser"
depends_on = ["site"]
start = "http://notes.localhost/pages/hang.html"
screenshots = false
"""
HANG: dict[str, Any] = {"type": "click", "role": "button", "name": "for ever"}
LOOK: dict[str, Any] = {"type": "goto", "url": f"{SITE}/notes/"}
WITHIN_S = 20.0  # on a machine with much else to do; it would be for ever


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Hanging(Scene):
    """A scene whose environments begin on the page with the button."""

    host = "notes.localhost"


@pytest.mark.parametrize("way_out", ["reset", "restore", "retire"])
async def test_a_page_that_hangs_ends_at_the_deadline_of_its_action(
    notes_base: Path, tmp_path: Path, way_out: str
) -> None:
    async with open_scene(Hanging, notes_base, tmp_path, more=BROWSER) as scene:
        kernel = scene.kernel
        await kernel.create("b")
        hung: list[ActResult] = []

        async def hang() -> None:
            hung.append(await kernel.act("a", HANG, timeout_s=1.0))

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hang)
                assert (await kernel.act("b", LOOK)).outcome == "ok"
        assert (hung[0].outcome, hung[0].code) == ("unknown", "action_timeout")
        ended = [event for event in await scene.events(ActionEnded) if event.env == "a"]
        assert [event.outcome for event in ended] == ["unknown"]

        with anyio.fail_after(WITHIN_S):
            drain = DrainPolicy(deadline_s=1, then="revoke")
            if way_out == "reset":
                await kernel.reset("a", drain=drain)
            elif way_out == "restore":
                await kernel.restore("a", kernel.world.capsule("a").moment, drain=drain)
            else:
                await kernel.retire("a")
            assert (await kernel.act("b", LOOK)).outcome == "ok"
        if way_out != "retire":
            assert (await kernel.act("a", LOOK)).outcome == "ok"
