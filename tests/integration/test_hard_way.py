"""Restore and fork proved the hard way: everything is scrambled, server and browser are new, raw tools compare."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statefork.actions import File as Attachment
from statefork.actions import Fill, Goto, NewTab, SwitchTab, Upload
from statefork.worlds.shop import catalogue
from tests.integration.shop_kit import needs_shop, open_shop, shopper

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.shop, needs_shop]

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060000000040001f61738550000"
    "000049454e44ae426082"
)  # one black pixel, PNG

KEEP = """async () => {
  sessionStorage.half = 'done'; localStorage.basket = 'kept';
  const open = indexedDB.open('notes', 2);
  open.onupgradeneeded = () => open.result.createObjectStore('notes', { autoIncrement: true });
  const db = await new Promise(done => { open.onsuccess = () => done(open.result) });
  const work = db.transaction('notes', 'readwrite');
  work.objectStore('notes').add({ text: 'remember', at: new Date(86400000) });
  await new Promise(done => { work.oncomplete = done });
  db.close();
}"""

READ = """async () => {
  const open = indexedDB.open('notes');
  const db = await new Promise((done, failed) => { open.onsuccess = () => done(open.result); open.onerror = failed });
  let notes = [];
  if (db.objectStoreNames.contains('notes')) {
    const all = db.transaction('notes').objectStore('notes').getAll();
    notes = await new Promise(done => { all.onsuccess = () => done(all.result) });
  }
  db.close();
  return {
    url: location.href, title: document.title, y: Math.round(scrollY), length: history.length,
    half: sessionStorage.half ?? null, basket: localStorage.basket ?? null,
    notes: notes.map(note => [note.text, note.at.getTime()]),
    fields: [...document.querySelectorAll('input[type=text], textarea')].map(e => [e.name, e.value]),
  };
}"""

WRECK = """async () => {
  sessionStorage.clear(); localStorage.clear();
  for (const { name } of await indexedDB.databases()) indexedDB.deleteDatabase(name);
  document.body.innerHTML = '';
}"""


def rows(env: Environment, sql: str) -> list[Any]:
    """Read the environment's own database with the standard library."""
    with closing(sqlite3.connect(f"file:{env.bindings['db'].address['path']}?mode=ro", uri=True)) as books:
        return books.execute(sql).fetchall()


def files(env: Environment) -> dict[str, str]:
    """Digest of every file in the environment's media directory."""
    root = Path(str(env.bindings["media"].address["path"]))
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


async def page_facts(env: Environment) -> dict[str, Any]:
    """What the active page itself says."""
    async with env.page() as page:
        facts: dict[str, Any] = await page.evaluate(READ)
    return facts


async def facts(env: Environment) -> dict[str, Any]:
    """Everything that is compared, in one value."""
    page = await page_facts(env)
    await env.act(SwitchTab(0))
    async with env.page() as first:
        front = {"first": first.url, "logged_in": await first.locator("text=Logout").count()}
        front["earlier"] = await first.evaluate("() => navigation.entries().map(e => new URL(e.url).pathname)")
    await env.act(SwitchTab(1))
    return {
        "page": page,
        **front,
        "reviews": rows(env, "SELECT title, body, score FROM reviews_productreview ORDER BY id DESC LIMIT 3"),
        "pictures": rows(env, "SELECT original FROM catalogue_productimage ORDER BY id DESC LIMIT 2"),
        "files": files(env),
    }


async def live(env: Environment) -> None:
    """A staff member uploads a picture, then leaves a review half written in a second tab, scrolled down."""
    hands = shopper(env)
    article = hands.articles[0]
    await hands.open("/accounts/login/")
    await hands.fill(login__username=catalogue.ADMIN_EMAIL, login__password=catalogue.ADMIN_PASSWORD)
    await hands.press("Log In")
    await hands.open(f"/dashboard/catalogue/products/{article.number}/")
    await env.act(
        Upload(
            "#id_images-1-original",
            files=(Attachment(name="new.png", content=base64.b64encode(PICTURE).decode(), mime="image/png"),),
        )
    )
    await hands.click("button[name=action][value=save]")
    await hands.open(article.path)
    await env.act(NewTab())
    await env.act(Goto(f"{hands.site}{article.path}reviews/add/"))
    await env.act(Fill(selector="#id_title", value="Half a title"))
    await env.act(Fill(selector="#id_body", value="It began well, and then"))
    async with env.page() as page:
        await page.evaluate(KEEP)
        await page.evaluate("() => scrollTo(0, 321)")


async def wreck(env: Environment) -> None:
    """Scramble every component: pages, rows, files, cookies."""
    async with env.page() as page:
        await page.evaluate(WRECK)
        await page.context.clear_cookies()
    with closing(sqlite3.connect(str(env.bindings["db"].address["path"]), timeout=10)) as books:
        books.execute("DELETE FROM reviews_productreview")
        books.execute("UPDATE catalogue_product SET title = 'wrecked'")
        books.execute("DELETE FROM django_session")
        books.commit()
    wreck_files(Path(str(env.bindings["media"].address["path"])))


def wreck_files(root: Path) -> None:
    """Take away, add and change."""
    pictures = sorted(root.rglob("*.png"))
    for path in pictures[:20]:
        path.unlink()
    pictures[20].write_bytes(b"wrecked")
    (root / "wreck.txt").write_text("wreck")


async def test_what_was_sealed_comes_back_in_a_restore_and_in_a_fork(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as engine:
        env = await engine.create("shop-1")
        await live(env)
        before = await facts(env)
        ref = await env.snapshot()
        assert before["logged_in"] == 1
        assert before["page"]["notes"] == [["remember", 86400000]]
        assert ["title", "Half a title"] in before["page"]["fields"]
        assert any(name.endswith(str(before["pictures"][0][0])) for name in before["files"])
        assert hashlib.sha256(PICTURE).hexdigest() in before["files"].values()
        await wreck(env)
        assert "wreck.txt" in files(env)
    async with open_shop(tmp_path) as engine:  # another server, another Chromium
        env = engine.environment("shop-1")
        await env.activate()
        assert rows(env, "SELECT count(*) FROM reviews_productreview") == [(0,)]
        (child,) = await engine.fork(ref, names=["shop-2"])
        assert await facts(child) == before
        await env.restore(ref)
        assert await facts(env) == before
