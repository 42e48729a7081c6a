"""A profile comes back in another Chromium as it was: proved by raw evaluations, not through the code under test."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.adapters.resources.browser import actions as a
from statefork.adapters.resources.browser import tab
from statefork.adapters.resources.browser.context import LiveContext
from statefork.engine.errors import ResourceFailed
from tests.integration.browser_kit import Kit, Site, browser, script, serving

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def use_desk(kit: Kit, site: Site) -> tuple[Any, Any]:
    branch, binding = await kit.fresh()
    await kit.act(binding, a.Goto(f"{site.other}/first"))
    await kit.raw(branch, "() => { sessionStorage.earlier = 'kept'; localStorage.there = 'too' }")
    await kit.act(binding, a.Goto(f"{site.base}/login"))
    await kit.act(binding, a.Goto(f"{site.base}/desk.html"))
    await kit.act(binding, a.Fill(label="Name", value="Ada"))
    await kit.act(binding, a.Select("#colour", labels=("green",)))
    await kit.act(binding, a.Select("#sizes", values=("S", "L")))
    await kit.act(binding, a.Check("#gift"))
    await kit.act(binding, a.Check("#cash"))
    await kit.act(binding, a.Upload("#files", files=(a.File(name="a.txt", content="YWJj", mime="text/plain"),)))
    await kit.raw(branch, script("use_desk"))
    await kit.raw(branch, script("fill_database"))
    await kit.act(binding, a.Fill("#note", value="half a sentence"))
    await kit.raw(branch, "() => { note.setSelectionRange(2, 5); scrollTo(0, 1234) }")
    return branch, binding


async def test_everything_a_person_did_comes_back_in_another_chromium(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, _ = await use_desk(kit, site)
            before = await kit.raw(branch, script("read_desk"))
            cookies = await kit.cookies(branch)
            sealed = await kit.seal(branch)
        assert before["state"] == 2
        assert before["files"] == [["a.txt", "text/plain", 3]]
        site.log.clear()
        async with browser(tmp_path, own=True) as kit:
            branch, binding = await kit.fork(sealed)
            assert site.paths() == ["/desk.html", "/inner.html"]
            assert await kit.raw(branch, script("read_desk")) == before
            assert await kit.cookies(branch) == cookies
            assert [c["value"] for c in cookies if c["name"] == "session"] == ["alice"]
            assert await kit.resource.differences(binding) == ()
            database = await kit.raw(branch, script("read_database"))
            assert database == {
                "version": 3, "unique": True, "jug": True, "cup": 86400000, "tags": ["a", "b"], "bytes": [1, 2, 255],
                "own": True, "nan": True, "not": True, "next": 4, "names": ["goods", "odd"], "blob": "blob",
            }  # fmt: skip
            await kit.act(binding, a.Forward())
            assert await kit.raw(branch, "() => location.search + history.state") == "?step=3null"
            for path in ("?step=2", "", "/login", "/first"):
                await kit.act(binding, a.Back())
                assert (await kit.resource.observe(binding)).url.endswith(path)
            there = await kit.raw(branch, "() => [sessionStorage.earlier, localStorage.there, location.hostname]")
            assert there == ["kept", "too", "localhost"]


async def test_a_restored_profile_seals_to_the_version_it_was_made_from(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await use_desk(kit, site)
            sealed = await kit.seal(branch)
            assert await kit.seal(branch) == sealed
            fork, _ = await kit.fork(sealed)
            assert await kit.resource.write_mark(fork) == await kit.resource.digest(sealed)
            assert await kit.seal(fork) == sealed
            await kit.act(binding, a.Fill("#name", value="Grace"))
            changed = await kit.seal(branch)
            assert changed.version != sealed.version
            names = [change.name async for change in kit.resource.diff(sealed, changed)]
            assert "tab 0 field 0 name" in names
            assert not [name for name in names if name.startswith(("cookie", "indexedDB", "localStorage"))]


async def test_what_the_load_writes_is_put_back(tmp_path: Path) -> None:
    """The page counts its loads in storage and the server counts in a cookie: a restore shows the sealed counts."""
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/counted"))
            await kit.act(binding, a.NewTab(f"{site.base}/desk.html"))
            cookies = await kit.cookies(branch)
            sealed = await kit.seal(branch)
            fork, _ = await kit.fork(sealed)
            assert await kit.cookies(fork) == cookies
            assert await kit.raw(fork, "() => [localStorage.visits, sessionStorage.loads]", tab=1) == ["1", "1"]


async def test_a_page_that_answered_a_post_is_shown_again_and_flagged(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/desk.html"))
            await kit.act(binding, a.Fill("#name", value="Ada"))
            await kit.act(binding, a.Click(role="button", name="Order"))
            await kit.act(binding, a.Fill("#note", value="typed after"))
            sealed = await kit.seal(branch)
            site.log.clear()
        async with browser(tmp_path, own=True) as kit:
            branch, binding = await kit.fork(sealed)
            read = "() => [document.querySelector('h1').textContent.includes('Ada'), note.value, location.pathname]"
            assert await kit.raw(branch, read) == [True, "typed after", "/order"]
            assert site.paths() == []
            assert site.paths(method="POST") == []
            assert [flag.split(":")[0] for flag in await kit.resource.flags(sealed)] == ["post-result"]
            assert await kit.seal(branch) == sealed
            await kit.act(binding, a.Back())
            assert await kit.raw(branch, "() => location.pathname") == "/desk.html"


async def test_service_workers_and_caches_come_back_in_a_secure_context(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/page"))
            await kit.raw(branch, script("fill_cache"))
            sealed = await kit.seal(branch)
        async with browser(tmp_path, own=True) as kit:
            branch, _ = await kit.fork(sealed)
            assert await kit.raw(branch, script("read_cache")) == ["kept", "b", "the worker says hello"]


async def test_a_popup_keeps_its_opener_and_the_active_tab_stays(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/talk.html"))
            seen = await kit.act(binding, a.Click(text="Open", exact=True))
            assert seen.url == f"{site.base}/inner.html"
            await kit.act(binding, a.NewTab(f"{site.base}/third"))
            await kit.act(binding, a.SwitchTab(1))
            sealed = await kit.seal(branch)
        async with browser(tmp_path, own=True) as kit:
            branch, binding = await kit.fork(sealed)
            assert (await kit.resource.observe(binding)).url == f"{site.base}/inner.html"
            opened = await kit.raw(branch, "() => [opener.location.pathname, window.name, history.length]", tab=1)
            assert opened == ["/talk.html", "kid", 1]
            assert await kit.raw(branch, "() => location.pathname", tab=2) == "/third"


@pytest.mark.parametrize(
    ("do", "kind"),
    [
        (script("keep_a_key"), "indexeddb-value"),
        (script("keep_a_file"), "opfs"),
        ("() => { window.s = new WebSocket('ws://' + location.host + '/socket') }", "live-connection"),
        ("() => { location.href = '/file' }", "download"),
    ],
)  # fmt: skip
async def test_what_cannot_be_carried_is_flagged(tmp_path: Path, do: str, kind: str) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/page"))
            async with kit.resource.raw(binding) as page:
                if kind == "live-connection":
                    async with page.expect_websocket():
                        await page.evaluate(do)
                    # A handshake that this server refuses ends the socket: hold the note of it, as an open one would.
                    kit.live(branch).active.sockets.add("ws://127.0.0.1/socket")
                elif kind == "download":
                    async with page.expect_download():
                        await page.evaluate(do)
                else:
                    await page.evaluate(do)
            flags = await kit.resource.flags(await kit.seal(branch))
            assert kind in {flag.split(":")[0] for flag in flags}


async def test_a_page_is_made_from_the_answer_that_it_was_made_from(tmp_path: Path) -> None:
    """A server may answer otherwise by now: tabs show what they were told, and what is asked anew is told anew."""
    text = "() => [document.body.textContent, document.cookie]"
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/once"))
            await kit.act(binding, a.NewTab(f"{site.base}/once"))
            await kit.act(binding, a.Goto(f"{site.base}/once?again#below"))
            sealed = await kit.seal(branch)
            fork, forked = await kit.fork(sealed)
            again, _ = await kit.fork(await kit.seal(fork))
            assert await kit.resource.differences(forked) == ()
            for env in (branch, fork, again):
                assert await kit.raw(env, text, tab=0) == ["asked 1 times", "asked=3"]
                assert await kit.raw(env, text, tab=1) == ["asked 3 times", "asked=3"]
            assert site.log.count(("GET", "/once")) == 3
            await kit.act(forked, a.Goto(f"{site.base}/once?anew"))
            assert await kit.raw(fork, text, tab=1) == ["asked 4 times", "asked=4"]


async def test_a_page_behind_that_could_not_be_kept_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "DOCUMENT_BYTES_MAX", 0)
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            for step in (a.Goto(f"{site.base}/once"), a.NewTab(f"{site.base}/second"), a.NewTab(f"{site.base}/once")):
                await kit.act(binding, step)
            _, forked = await kit.fork(await kit.seal(branch))
            assert await kit.resource.unlike_behind(forked) == ("tab 0: its text differs",)
            assert {"tab 0: its text differs", "tab 2: its text differs"} <= set(await kit.resource.differences(forked))


async def test_a_page_loaded_again_is_sealed_as_it_is_now(tmp_path: Path) -> None:
    """It looks the same, but for what nobody sees: such as a token that its server takes once."""
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            for token in (1, 2):
                await kit.act(binding, a.Goto(f"{site.base}/token"))
                fork, _ = await kit.fork(await kit.seal(branch))
                assert await kit.raw(fork, "() => document.body.dataset.token") == str(token)


async def test_an_answer_that_is_kept_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep, noted = tab.LiveTab._keep, LiveContext.noted
    looked = asyncio.Event()

    async def late(self: tab.LiveTab, request: Any) -> Any:
        await looked.wait()
        return await keep(self, request)

    async def looking(self: LiveContext) -> None:
        asyncio.get_running_loop().call_later(0.3, looked.set)  # longer than a look takes that does not wait
        await noted(self)

    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            monkeypatch.setattr(tab.LiveTab, "_keep", late)
            monkeypatch.setattr(LiveContext, "noted", looking)
            await kit.act(binding, a.Goto(f"{site.base}/once"))
            await kit.fork(await kit.seal(branch))
            assert site.log.count(("GET", "/once")) == 1


async def test_an_address_changed_while_a_page_is_awaited_is_not_that_page(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/page"))
            await kit.raw(branch, script("change_meanwhile"))
            await kit.on_thread(kit.live(branch).active.page.wait_for_url, "**/meanwhile")
            site.release.set()
            await kit.on_thread(kit.live(branch).active.page.wait_for_url, "**/slow")
            await kit.fork(await kit.seal(branch))
            assert site.log.count(("GET", "/slow")) == 1


async def test_of_an_address_that_a_script_has_changed_the_server_is_asked(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/once"))
            await kit.raw(branch, "() => history.replaceState(null, '', '/second')")
            fork, _ = await kit.fork(await kit.seal(branch))
            assert await kit.raw(fork, "() => document.title") == "/second"


async def test_a_server_failure_in_a_restore_is_no_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tab, "DOCUMENT_BYTES_MAX", 0)  # so that the server is asked
    with serving() as site:
        async with browser(tmp_path, start=f"{site.base}/desk.html") as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Fill("#name", value="Ada"))
            sealed = await kit.seal(branch)
            site.failing = True
            with pytest.raises(ResourceFailed, match="answered 503"):
                await kit.fork(sealed)
            with pytest.raises(ResourceFailed, match="answered 503"):
                await kit.fresh("other")
            site.failing = False
            fork, _ = await kit.fork(sealed)
            assert await kit.raw(fork, "() => document.getElementById('name').value") == "Ada"


async def test_many_forks_at_once_are_each_whole(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, _ = await use_desk(kit, site)
            before = await kit.raw(branch, script("read_desk"))
            sealed = await kit.seal(branch)
            forks = []

            async def fork(name: str) -> None:
                forks.append(await kit.fork(sealed, name))

            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(fork, f"f{number}")
            for child, binding in forks:
                assert await kit.raw(child, script("read_desk")) == before
                assert await kit.resource.differences(binding) == ()
            await kit.act(forks[0][1], a.Fill("#name", value="only here"))
            await kit.raw(forks[0][0], "() => { localStorage.only = 1; document.cookie = 'only=1' }")
            for child, _ in [(branch, None), *forks[1:]]:
                assert await kit.raw(child, "() => [localStorage.only, document.cookie]") == [None, ""]


async def test_a_page_that_its_load_puts_into_the_history_is_where_it_was(tmp_path: Path) -> None:
    """The load makes the last entry itself: what it finds, and what is around it, is as it was the first time."""
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/first"))
            await kit.raw(branch, "() => { localStorage.visits = '7'; sessionStorage.loads = '8' }")
            link = "(to) => { document.body.innerHTML = `<a id=on href=${to}>on</a>` }"
            await kit.raw(branch, link, "/desk.html")
            await kit.act(binding, a.Click("#on"))
            look = "() => [history.length, document.referrer, localStorage.visits, sessionStorage.loads]"
            before = await kit.raw(branch, look)
            assert before[1:] == [f"{site.base}/first", "8", "9"]
            sealed = await kit.seal(branch)
            site.log.clear()
            fork, forked = await kit.fork(sealed)
            assert "/inner.html" in site.paths()
            assert "/desk.html" not in site.paths()
            assert await kit.raw(fork, look) == before
            assert await kit.raw(fork, "() => performance.getEntriesByType('navigation')[0].type") == "navigate"
            assert await kit.resource.differences(forked) == ()
            await kit.act(forked, a.Back())
            assert await kit.raw(fork, "() => [history.length, location.pathname]") == [before[0], "/first"]


async def test_a_page_one_fragment_from_its_neighbour_is_loaded(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/first"))
            await kit.act(binding, a.Goto(f"{site.base}/second"))
            await kit.act(binding, a.Goto(f"{site.base}/second#below"))
            fork, forked = await kit.fork(await kit.seal(branch))
            assert await kit.raw(fork, "() => [document.title, location.hash]") == ["/second", "#below"]
            assert await kit.resource.differences(forked) == ()


async def test_two_entries_of_one_address_stay_two_documents(tmp_path: Path) -> None:
    """A link that leads back to where it stood, by a redirect: going back loads a page, in a fork as well."""
    follow = "() => { document.body.innerHTML = '<a id=on href=/back-to-second>on</a>' }"
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/second"))
            await kit.raw(branch, follow)
            await kit.act(binding, a.Click("#on"))
            sealed = await kit.seal(branch)
            entries = kit.resource._files.read(sealed.version).profile.tabs[0].entries
            assert [entry.url for entry in entries[-2:]] == [f"{site.base}/second"] * 2
            fork, forked = await kit.fork(sealed)
            assert await kit.resource.differences(forked) == ()
            again = await kit.seal(fork)
            assert kit.resource._files.read(again.version).profile.tabs[0].entries == entries
            await kit.raw(fork, "() => { window.here = true }")
            await kit.act(forked, a.Back())
            assert await kit.raw(fork, "() => [location.pathname, window.here]") == ["/second", None]


async def test_where_a_frame_went_is_no_entry_more(tmp_path: Path) -> None:
    look = "() => [history.length, frames[0].document.title]"
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fresh()
            await kit.act(binding, a.Goto(f"{site.base}/framing"))
            await kit.act(binding, a.Click("#on"))
            before = await kit.raw(branch, look)
            assert before[1] == "/second"
            fork, forked = await kit.fork(await kit.seal(branch))
            assert await kit.raw(fork, look) == before
            assert await kit.resource.differences(forked) == ()
