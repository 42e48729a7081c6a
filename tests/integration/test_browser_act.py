"""Acting and observing on real pages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.resources.browser import actions as a
from statefork.engine.errors import ActionFailed, InvalidAction
from tests.integration.browser_kit import DoorGateway, browser, serving

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def test_actions_do_what_they_say(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/talk.html") as kit:
            branch, binding = await kit.fresh()

            async def act(action: Any) -> Any:
                return await kit.act(binding, action)

            assert (await act(a.Click(text="Twice", count=2))).title == "double"
            assert (await act(a.Hover("#pad"))).title == "over"
            box = await kit.raw(branch, "() => { const b = pad.getBoundingClientRect(); return [b.x, b.y] }")
            assert (await act(a.Click(x=box[0] + 7, y=box[1] + 9))).title == "pad 7"
            assert (await act(a.Press("#keys", key="Enter"))).title == "key Enter"
            assert (await act(a.Press(key="x"))).title == "key x"
            await act(a.Fill("#keys", value="yz", keys=True))
            assert await kit.raw(branch, "() => keys.value") == "xyz"
            await act(a.Scroll(dy=500))
            assert await kit.raw(branch, "() => scrollY") == 500
            await act(a.Click(role="button", name="Later"))
            await act(a.Wait(text="later", exact=True))
            seen = await act(a.Click(role="link", name="Desk"))
            assert seen.url == f"{site.base}/desk.html"
            tabs = json.loads(kit.blobs.get(seen.parts["tabs"]))
            assert [tab["active"] for tab in tabs] == [False, True]
            seen = await act(a.CloseTab())
            assert (seen.url, seen.title) == (f"{site.base}/talk.html", "key z")
            seen = await act(a.CloseTab())
            assert seen.url == "about:blank"
            seen = await act(a.Goto(f"{site.base}/missing.html"))
            assert seen.value == {"status": 200}
            await act(a.Wait(url="**/missing.html"))
            assert kit.blobs.get(seen.screenshot).startswith(b"\x89PNG")
            assert b"page /missing.html" in kit.blobs.get(seen.snapshot)


async def test_dialogs_are_answered_and_told(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/talk.html") as kit:
            _, binding = await kit.fresh()
            seen = await kit.act(binding, a.Click(text="Ask"))
            assert seen.title == "answer false"
            assert seen.value == {"dialogs": [{"type": "confirm", "message": "really?", "answer": "dismiss"}]}
            assert (await kit.act(binding, a.Click(text="Ask", dialog="accept"))).title == "answer true"
            seen = await kit.act(binding, a.Click(text="Say", dialog="accept", dialog_text="hello"))
            assert seen.title == "said hello"
            assert (await kit.act(binding, a.Click(text="Warn"))).title == "warned"


async def test_files_go_up_and_come_down(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            _, binding = await kit.fresh()
            content = base64.b64encode(b"picture").decode()
            await kit.act(binding, a.Upload("#files", files=(a.File(name="p.png", content=content, mime="image/png"),)))
            await kit.act(binding, a.Click(text="Order"))
            assert b"p.png" in site.bodies[-1]
            await kit.act(binding, a.Goto(f"{site.base}/talk.html"))
            seen = await kit.act(binding, a.Click(text="Bill"))
            assert kit.blobs.get(seen.parts["download:bill.pdf"]) == b"the invoice"


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (a.Click(text="Same", timeout_ms=500), "resolved to 2 elements"),
        (a.Click(text="Nowhere", timeout_ms=300), "Nowhere"),
        (a.Goto("http://127.0.0.1:9/"), "ERR_"),
        (a.Back(), "nothing to go back to"),
        (a.Forward(), "nothing to go forward to"),
        (a.Wait(url="**/never", timeout_ms=300), "Timeout 300ms"),
        (a.Fill("#pad", value="x", timeout_ms=300), "not an <input>"),
    ],
)  # fmt: skip
async def test_the_world_says_no(tmp_path: Path, action: Any, words: str) -> None:
    with serving() as site:
        async with browser(tmp_path, start="about:blank") as kit:
            _, binding = await kit.fresh()
            if not isinstance(action, a.Back):
                await kit.act(binding, a.Goto(f"{site.base}/talk.html"))
            with pytest.raises(ActionFailed, match=words):
                await kit.act(binding, action)
            await kit.resource.probe(binding)
            with pytest.raises(InvalidAction, match="no tab 7"):
                await kit.act(binding, a.SwitchTab(7))


async def test_equal_pages_have_equal_digests_and_the_tabs_count(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            _, one = await kit.fresh("one")
            _, two = await kit.fresh("two")
            first, second = await kit.resource.observe(one), await kit.resource.observe(two)
            assert first.digest == second.digest
            assert kit.blobs.get(first.screenshot) == kit.blobs.get(second.screenshot)
            filled = await kit.act(one, a.Fill("#name", value="Ada"))
            assert filled.digest != first.digest
            await kit.act(two, a.NewTab(f"{site.base}/other"))
            assert (await kit.act(two, a.SwitchTab(0))).digest != second.digest


async def test_an_endless_request_does_not_hold_an_action_for_ever(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/talk.html", settle_s=0.3) as kit:
            _, binding = await kit.fresh()
            assert (await kit.act(binding, a.Click(text="Slow"))).title == "talk"
            # What was under way before an action is not the action's: the next one need not wait for it at all.
            site.release.set()
            async with kit.resource.raw(binding) as page:
                await page.wait_for_function("document.title === 'slow'")


async def test_requests_of_the_context_go_through_its_own_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A user's environment can tell Playwright to leave loopback addresses out. Not ours.
    monkeypatch.setenv("PLAYWRIGHT_DISABLE_FORCED_CHROMIUM_PROXIED_LOOPBACK", "1")
    with serving() as site:
        gateway = DoorGateway(site.port)
        async with browser(tmp_path, start="http://shop.example/desk.html", gateway=gateway, own=True) as kit:
            branch, binding = await kit.fresh()
            (door,) = gateway.doors
            assert (door.identity, door.port) == (binding.identity, binding.address["port"])
            assert (await kit.resource.observe(binding)).url == "http://shop.example/desk.html"
            # Loopback addresses must not go past the proxy either.
            assert (await kit.act(binding, a.Goto("http://127.0.0.1:8099/x"))).value == {"status": 200}
            assert (await kit.act(binding, a.Goto("http://localhost:8099/y"))).value == {"status": 200}
            # A world whose hosts end in .localhost is a secure context over plain http: service workers work there.
            await kit.act(binding, a.Goto("http://shop.localhost/page"))
            assert await kit.raw(branch, "() => [isSecureContext, 'serviceWorker' in navigator]") == [True, True]
            await kit.resource.unbind(binding)
            assert not door.open
