"""A profile comes back in another Chromium as it was: proved with raw evaluations, never through the code under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.resources.browser import actions as a
from tests.integration.browser_kit import Kit, Site, browser, needs_chromium, serving

pytestmark = [pytest.mark.anyio, pytest.mark.browser, needs_chromium]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


FILL_DATABASE = """async () => {
  const open = indexedDB.open("shop", 3);
  open.onupgradeneeded = () => {
    const goods = open.result.createObjectStore("goods", { keyPath: "id", autoIncrement: true });
    goods.createIndex("by name", "name", { unique: true });
    open.result.createObjectStore("odd");
  };
  const db = await new Promise(done => { open.onsuccess = () => done(open.result) });
  const work = db.transaction(["goods", "odd"], "readwrite");
  work.objectStore("goods").add({ name: "cup", at: new Date(86400000), tags: new Set(["a", "b"]) });
  work.objectStore("goods").add({ name: "jug", size: new Map([["h", 3n]]) });
  work.objectStore("goods").add({ name: "gone" });
  work.objectStore("goods").delete(3);
  const self = { bytes: new Uint8Array([1, 2, 255]), blob: new Blob(["blob"], { type: "text/plain" }), nan: NaN, not: undefined };
  self.me = self;
  work.objectStore("odd").put(self, ["key", 1]);
  await new Promise(done => { work.oncomplete = done });
  db.close();
}"""

READ_DATABASE = """async () => {
  const open = indexedDB.open("shop");
  const db = await new Promise(done => { open.onsuccess = () => done(open.result) });
  const work = db.transaction(["goods", "odd"], "readwrite");
  const ask = r => new Promise(done => { r.onsuccess = () => done(r.result) });
  const jug = await ask(work.objectStore("goods").index("by name").get("jug"));
  const cup = await ask(work.objectStore("goods").get(1));
  const odd = await ask(work.objectStore("odd").get(["key", 1]));
  const next = await ask(work.objectStore("goods").add({ name: "new" }));
  const text = odd.blob.text();
  const found = { version: db.version, unique: work.objectStore("goods").index("by name").unique, jug: jug.size.get("h") === 3n,
    cup: cup.at.getTime(), tags: [...cup.tags], bytes: [...odd.bytes], own: odd.me === odd, nan: Number.isNaN(odd.nan),
    not: "not" in odd && odd.not === undefined, next, names: [...db.objectStoreNames] };
  db.close();
  return { ...found, blob: await text };
}"""

READ_DESK = """() => {
  const $ = id => document.getElementById(id);
  return {
    name: $("name").value, note: $("note").value, colour: $("colour").value,
    sizes: [...$("sizes").selectedOptions].map(o => o.value), gift: $("gift").checked, cash: $("cash").checked,
    files: [...$("files").files].map(f => [f.name, f.type, f.size]), rich: $("rich").innerHTML, more: $("more").open,
    modal: $("box").matches(":modal"), list: $("list").scrollTop, y: scrollY, deep: $("shadow").shadowRoot.getElementById("deep").value,
    inside: $("inner").contentDocument.getElementById("inside").value, innerY: $("inner").contentWindow.scrollY,
    focus: document.activeElement.id, caret: [$("note").selectionStart, $("note").selectionEnd], windowName: window.name,
    state: history.state?.map?.get("step"), length: history.length, visits: localStorage.visits, loads: sessionStorage.loads,
    here: sessionStorage.here, url: location.pathname + location.hash,
  }
}"""

USE_DESK = """() => {
  const $ = id => document.getElementById(id);
  $("rich").innerHTML = "<b>rich</b> text"; $("more").open = true; $("list").scrollTop = 777;
  $("shadow").shadowRoot.getElementById("deep").value = "deep"; $("inner").contentDocument.getElementById("inside").value = "inside";
  $("inner").contentWindow.scrollTo(0, 55); sessionStorage.here = "yes"; window.name = "desk window";
  history.pushState({ map: new Map([["step", 2]]) }, "", "/desk.html?step=2"); history.pushState(null, "", "/desk.html?step=3"); history.back();
}"""


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
    await kit.raw(branch, USE_DESK)
    await kit.raw(branch, FILL_DATABASE)
    await kit.act(binding, a.Fill("#note", value="half a sentence"))
    await kit.raw(branch, "() => { note.setSelectionRange(2, 5); scrollTo(0, 1234) }")
    return branch, binding


async def test_everything_a_person_did_comes_back_in_another_chromium(tmp_path: Path) -> None:
    with serving() as site:
        async with browser(tmp_path) as kit:
            branch, _ = await use_desk(kit, site)
            before = await kit.raw(branch, READ_DESK)
            cookies = await kit.cookies(branch)
            sealed = await kit.seal(branch)
        assert before["state"] == 2
        assert before["files"] == [["a.txt", "text/plain", 3]]
        site.log.clear()
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fork(sealed)
            assert site.paths() == ["/desk.html", "/inner.html"]
            assert await kit.raw(branch, READ_DESK) == before
            assert await kit.cookies(branch) == cookies
            assert [c["value"] for c in cookies if c["name"] == "session"] == ["alice"]
            assert await kit.resource.differences(binding) == ()
            database = await kit.raw(branch, READ_DATABASE)
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
            assert await kit.resource.write_mark(fork) == sealed.version
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
        async with browser(tmp_path) as kit:
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
            await kit.raw(
                branch,
                "async () => { await navigator.serviceWorker.register('/worker.js'); await navigator.serviceWorker.ready }",
            )
            await kit.raw(
                branch,
                "async () => (await caches.open('shelf')).put('/kept', new Response('kept', { headers: { 'x-a': 'b' } }))",
            )
            sealed = await kit.seal(branch)
        async with browser(tmp_path) as kit:
            branch, _ = await kit.fork(sealed)
            assert await kit.raw(branch, "() => fetch('/from-worker').then(r => r.text())") == "the worker says hello"
            kept = (
                "async () => { const r = await caches.match('/kept'); return [await r.text(), r.headers.get('x-a')] }"
            )
            assert await kit.raw(branch, kept) == ["kept", "b"]


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
        async with browser(tmp_path) as kit:
            branch, binding = await kit.fork(sealed)
            assert (await kit.resource.observe(binding)).url == f"{site.base}/inner.html"
            opened = await kit.raw(branch, "() => [opener.location.pathname, window.name, history.length]", tab=1)
            assert opened == ["/talk.html", "kid", 1]
            assert await kit.raw(branch, "() => location.pathname", tab=2) == "/third"


@pytest.mark.parametrize(
    ("do", "kind"),
    [
        ("async () => { const k = await crypto.subtle.generateKey({ name: 'AES-GCM', length: 128 }, false, ['encrypt']);"
         " const o = indexedDB.open('keys'); o.onupgradeneeded = () => o.result.createObjectStore('k');"
         " await new Promise(r => { o.onsuccess = () => { const t = o.result.transaction('k', 'readwrite');"
         " t.objectStore('k').put(k, 1); t.oncomplete = r } }); o.result.close() }", "indexeddb-value"),
        ("async () => { const d = await navigator.storage.getDirectory(); await d.getFileHandle('f', { create: true }) }",
         "opfs"),
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
