"""Sealing: marks that follow the content, pages that stand still for the length of a cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.adapters.resources.browser import actions as a
from statefork.adapters.resources.browser import capture as capture_module
from statefork.engine.errors import ResourceFailed
from statefork.journal.values import Branch
from tests.integration.browser_kit import Kit, Site, browser, script, serving

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


CHANGES = {
    "cookie": "() => { document.cookie = 'k=2' }",
    "localStorage": "() => { localStorage.k = 2 }",
    "sessionStorage": "() => { sessionStorage.k = 2 }",
    "indexedDB": script("keep_a_number"),
    "cache": "async () => (await caches.open('c')).put('/x', new Response('x'))",
    "field": "() => { document.getElementById('name').value = 'k2' }",
    "ticked": "() => { gift.checked = !gift.checked }",
    "caret": "() => { note.focus(); note.setSelectionRange(1, 1) }",
    "scroll": "() => { scrollTo(0, 33) }",
    "element scroll": "() => { list.scrollTop = 44 }",
    "history.state": "() => { history.replaceState({ k: 2 }, '') }",
    "address": "() => { location.hash = 'k2' }",
    "window.name": "() => { window.name = 'k2' }",
    "open": "() => { more.open = !more.open }",
    "frame": "() => { inner.contentDocument.getElementById('inside').value = 'k2' }",
}


async def test_the_mark_changes_with_every_kind_of_content_and_only_then(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            branch, _ = await kit.fresh()
            await kit.raw(branch, "() => { note.value = 'text' }")
            seen = await kit.resource.write_mark(branch)
            versions = {(await kit.seal(branch)).version}
            for kind, change in CHANGES.items():
                await kit.raw(branch, change)
                mark = await kit.resource.write_mark(branch)
                assert mark != seen, kind
                assert await kit.resource.write_mark(branch) == mark, kind
                sealed = await kit.seal(branch)
                assert await kit.resource.write_mark(branch) == mark, f"sealing moved the mark: {kind}"
                assert await kit.seal(branch) == sealed, kind
                assert await kit.resource.digest(sealed) == mark
                versions.add(sealed.version)
                seen = mark
            assert len(versions) == len(CHANGES) + 1


async def test_a_fresh_branch_is_unchanged_until_something_is_done(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            base = await kit.resource.provision()
            assert await kit.resource.provision() == base
            branch, _ = await kit.fresh()
            assert await kit.resource.write_mark(branch) == await kit.resource.digest(base)
            assert await kit.seal(branch) == base
            await kit.raw(branch, "() => { note.value = 'text' }")
            assert (await kit.seal(branch)).version != base.version


async def test_pages_stand_still_between_quiesce_and_thaw_and_go_on_after(tmp_path: Path) -> None:
    """Two tabs of one origin: the quiet one's storage shows what the busy one does meanwhile."""
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/busy.html") as kit:
            branch, binding = await kit.fresh()
            kit.resource.check(a.NewTab().to_json())
            await kit.act(binding, a.NewTab(f"{site.base}/page"))
            count = "() => Number(localStorage.n)"
            first = await kit.raw(branch, count)
            await kit.raw(branch, script("until_counted"), first, tab=1)
            await kit.resource.quiesce(branch)
            mark = await kit.resource.write_mark(branch)
            sealed = await kit.resource.seal(branch)
            assert await kit.resource.seal(branch) == sealed
            # The cookie jar is what a background answer could still change: the mark must see it.
            context = kit.live(branch).context
            await kit.on_thread(context.add_cookies, [{"name": "late", "value": "1", "url": site.base}])
            assert await kit.resource.write_mark(branch) != mark
            await kit.on_thread(lambda: context.clear_cookies(name="late"))
            assert await kit.resource.write_mark(branch) == mark
            assert await count_by_another_page(kit, branch, site) == await count_by_another_page(kit, branch, site)
            await kit.resource.thaw(branch)
            await kit.resource.thaw(branch)
            await kit.raw(branch, script("until_counted"), await kit.raw(branch, count))


@pytest.mark.parametrize("unanswered", ["Debugger.enable", "Debugger.pause", "Runtime.evaluate"])
async def test_a_page_goes_on_wherever_the_time_for_pausing_it_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unanswered: str
) -> None:
    """A busy machine answers late: what was asked for happens all the same, and has to be taken back."""
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/busy.html") as kit:
            branch, _ = await kit.fresh()
            context = kit.live(branch).context
            attach = context.new_cdp_session

            async def attached(page: Any) -> Any:
                session = await attach(page)
                send = session.send

                async def send_and_wait_in_vain(method: str, *arguments: Any) -> Any:
                    answer = await send(method, *arguments)
                    if method == unanswered:
                        raise TimeoutError
                    return answer

                monkeypatch.setattr(session, "send", send_and_wait_in_vain)
                return session

            monkeypatch.setattr(context, "new_cdp_session", attached)
            await kit.resource.quiesce(branch)
            await kit.resource.thaw(branch)
            with anyio.fail_after(10):
                await kit.raw(branch, script("until_counted"), await kit.raw(branch, "() => Number(localStorage.n)"))


async def count_by_another_page(kit: Kit, branch: Branch, site: Site) -> str:
    """What the busy page has written, read by a page of the same origin that is opened just for that."""

    async def read() -> str:
        page = await kit.live(branch).hidden_page()
        await page.goto(f"{site.base}/page")
        await page.evaluate(script("many_frames"))
        count: str = await page.evaluate("() => localStorage.n")
        await page.close()
        return count

    return str(await kit.on_thread(read))


async def test_a_missing_or_damaged_version_is_refused_by_name(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            branch, _ = await kit.fresh()
            await kit.raw(branch, "() => { note.value = 'text' }")
            sealed = await kit.seal(branch)
            path = tmp_path / str(sealed.data["path"])
            path.write_bytes(path.read_bytes().replace(b'"text"', b'"tAxt"'))
            with pytest.raises(ResourceFailed, match="is not what was sealed"):
                await kit.fork(sealed)
            path.write_bytes(b"{")
            with pytest.raises(ResourceFailed, match="can't be read"):
                await kit.fork(sealed)
            await kit.resource.discard(sealed)
            await kit.resource.discard(sealed)
            with pytest.raises(ResourceFailed, match="No such file"):
                await kit.fork(sealed)


async def test_a_quiesced_context_can_be_closed_without_being_thawed(tmp_path: Path) -> None:
    """A switch publishes over a context that stands still, and closes it as it is."""
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/busy.html") as kit:
            branch, binding = await kit.fresh()
            await kit.resource.quiesce(branch)
            await kit.resource.unbind(binding)
            await kit.resource.thaw(branch)
            other, _ = await kit.fresh("other")
            await kit.resource.quiesce(other)


async def test_a_hung_page_is_flagged_and_the_rest_is_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "FRAME_SECONDS_MAX", 0.5)
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Fill("#name", value="Ada"))
            await kit.act(binding, a.NewTab(f"{site.other}/page"))
            await kit.raw(branch, "() => { localStorage.k = 1; setTimeout(() => { for (;;); }, 0) }", tab=1)
            await kit.resource.quiesce(branch)
            sealed = await kit.resource.seal(branch)
            assert [flag.split(":")[0] for flag in await kit.resource.flags(sealed)] == ["frame-unreadable"]
            await kit.resource.unbind(binding)
            fork, _ = await kit.fork(sealed)
            assert await kit.raw(fork, "() => document.getElementById('name').value") == "Ada"
            assert await kit.raw(fork, "() => [location.pathname, localStorage.k]", tab=1) == ["/page", "1"]
