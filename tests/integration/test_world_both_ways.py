"""A real site, once on the server that environments share and once on private backends: who uses it sees the same."""

from __future__ import annotations

import re
import shutil
import sqlite3
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

import statefork
from statefork.actions import Click, Fill, Goto
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from tests.contract.postgres_server import missing_postgres
from tests.integration.forms_kit import Admin
from tests.integration.shop_kit import MISSING as SHOP_LACKS
from tests.integration.stack_kit import WORLDS, Tracker, Wiki, missing, picture


class Shop:
    """The shop, of which there are two homes of rows: a database of its own, or a file in a tree."""

    name = "shop"
    pages = ("/", "/catalogue/", "/basket/", "/search/?q=lamp", "/dashboard/reviews/")

    async def login(self, client: httpx.AsyncClient) -> None:
        await Admin(client).log_in()

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return (await client.get("/admin/", follow_redirects=False)).status_code == 200

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> str:
        product = re.search(r'href="(/catalogue/[\w-]+_\d+/)"', (await client.get("/catalogue/")).text)
        assert product is not None
        made = await Admin(client).fill(f"{product[1]}reviews/add/", "score", title=title, score="5", body=text)
        assert made.status_code == 200
        return str(made.url.path)

    async def upload(self, client: httpx.AsyncClient, name: str, data: bytes) -> str:
        return ""  # no customer can

    async def found(self, client: httpx.AsyncClient, word: str) -> int:
        page = await client.get("/dashboard/reviews/", params={"keyword": word, "status": ""})
        return page.text.count('name="selected_review"')

    def texts(self, env: Environment, title: str) -> list[str]:
        shared = env.bindings.get("db")
        tree = Path(str(env.bindings["shop"].address.get("path", "")))
        file = Path(str(shared.address["path"])) if shared is not None else tree / "shop.sqlite3"
        with closing(sqlite3.connect(file)) as connection:
            rows = connection.execute("SELECT body FROM reviews_productreview WHERE title = ?", (title,))
            return [row[0] for row in rows]


SITES: dict[str, Any] = {site.name: site for site in (Shop(), Tracker(), Wiki())}
LACKING = {"shop": SHOP_LACKS} | {name: missing(SITES[name]) or missing_postgres() for name in ("tracker", "wiki")}
WAYS = {"shared": "", "private": "-private"}

pytestmark = [pytest.mark.anyio, pytest.mark.sites, pytest.mark.timeout(900)]


def each_of(*names: str) -> pytest.MarkDecorator:
    """Those whose worlds can be had here."""
    marks = {name: pytest.mark.skipif(bool(LACKING[name]), reason=LACKING[name] or "all is here") for name in names}
    return pytest.mark.parametrize("site", [pytest.param(name, marks=marks[name]) for name in names])


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


MASKS = (
    r"\d\d/\d\d/\d{4} \d\d:\d\d [AP]M|\b\d\d:\d\d( [AP]M)?\b",  # when something was written
    r"less than a minute|1 minute|\d minutes",  # how long ago that is
    r"(?<=atom\?key=)\w+",
    r"(?<=token=)[0-9a-f]+",
    r"\b\d{1,2} [A-Z][a-z]+ \d{4}\b",
    r"(?<=from=)\d{14}|(?<=fromFormatted=)[\w%+]+",  # "new changes starting from" now
)
"""What may differ between any two runs: clocks, and what is drawn by chance."""


class Shown(HTMLParser):
    """What a page shows and leads to: its texts, links and pictures; in no order, for sites order by the second."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._within: list[str] = []
        self.parts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._within.append(tag)
        self.parts += [f"{tag} {key}={value}" for key, value in attrs if key in ("href", "src", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag in self._within:
            self._within.remove(tag)

    def handle_data(self, data: str) -> None:
        if not self._within and data.strip():
            self.parts.append(" ".join(data.split()))


def contract_of(name: str, *, browser: bool) -> str:
    """A packaged contract whose bases lie beside it."""
    (file,) = WORLDS.glob(f"*/{name}.toml")
    text = re.sub(r"^(build|name) = .*$", "", file.read_text(), flags=re.MULTILINE)
    text = text.replace("[contract]", '[contract]\nname = "world"')
    return (
        text if browser else re.sub(r"^\[resources\.browser\].*?(?=^\[|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    )


@asynccontextmanager
async def world(site: str, way: str, directory: Path, *, browser: bool = False) -> AsyncIterator[Engine]:
    """The site's world on one of the two ways."""
    base = import_module(f"statefork.worlds.{site}.build").cached(lambda fraction, text: None)
    shutil.copytree(base, directory / "base")
    contract = directory / "base" / "world.toml"
    contract.write_text(contract_of(f"{site}{way}", browser=browser))
    async with open_engine(contract, state=directory / "state") as engine:
        yield engine


@pytest.mark.parametrize("site", ["tracker", "wiki"])
def test_nothing_but_the_site_itself_is_declared_otherwise(site: str) -> None:
    shared, private = (tomllib.loads(contract_of(f"{site}{suffix}", browser=True)) for suffix in WAYS.values())
    assert (shared["resources"].pop(site)["adapter"], private["resources"].pop(site)["adapter"]) == ("web", "process")
    assert shared == private


class Visitor:
    """Uses an environment's site, and writes down what it sees."""

    def __init__(self, site: str, env: Environment, seen: list[tuple[object, ...]]) -> None:
        self.site = SITES[site]
        self.env = env
        self.seen = seen
        address = env.base_url(site)
        self.client = httpx.AsyncClient(base_url=address, timeout=60, trust_env=False, follow_redirects=True)

    def as_logged_in_as(self, other: Visitor) -> Visitor:
        """With the other's cookies, as a browser of a fork has them."""
        for cookie in other.client.cookies.jar:
            self.client.cookies.set(cookie.name, cookie.value or "", domain=self.client.base_url.host)
        return self

    async def use(self, word: str) -> None:
        """Write under a title that is everybody's; what is then found, and what the rows hold."""
        where = await self.site.add(self.client, "Lamp", f"a lamp that is {word}")
        uploaded = await self.site.upload(self.client, f"{word}.png", picture(word))
        self.note("wrote", where, uploaded, await self.site.found(self.client, word))

    async def look_around(self) -> None:
        """All pages, what is found, what the rows hold."""
        for page in self.site.pages:
            answer = await self.client.get(page)
            kind = answer.headers.get("content-type")
            self.note(page, answer.status_code, answer.url.path, kind, self.shown(answer.text))
        found = {word: await self.site.found(self.client, word) for word in ("early", "late", "left", "right")}
        self.note(await self.site.is_logged_in(self.client), found, sorted(self.site.texts(self.env, "Lamp")))

    def shown(self, page: str) -> list[str]:
        """Without what depends on clocks and chance, and on the address of the door."""
        page = page.replace(str(self.client.base_url).rstrip("/"), "http://door")
        return sorted(re.sub("|".join(MASKS), "~", part) for part in Shown(page).parts)

    def note(self, *seen: object) -> None:
        self.seen.append((self.env.name, *seen))


async def observed(engine: Engine, site: str) -> list[tuple[object, ...]]:
    """What visitors see of an environment, of its children, after a rollback and after a reset; and of another one."""
    one, other = await engine.create("one"), await engine.create("other")
    seen: list[tuple[object, ...]] = []
    visitors = [Visitor(site, one, seen), Visitor(site, other, seen)]
    await visitors[0].site.login(visitors[0].client)
    await visitors[0].use("early")
    saved = await one.snapshot()
    await visitors[0].use("late")
    await visitors[0].look_around()
    for env in await engine.fork(saved, names=["left", "right"]):
        child = Visitor(site, env, seen).as_logged_in_as(visitors[0])
        visitors.append(child)
        await child.use(env.name)
        await child.look_around()
    await visitors[1].look_around()
    for back in (lambda: one.restore(saved), one.reset):
        await back()
        again = Visitor(site, one, seen).as_logged_in_as(visitors[0])
        visitors.append(again)
        await again.look_around()
    for visitor in visitors:
        await visitor.client.aclose()
    return seen


@each_of("shop", "tracker", "wiki")
async def test_who_uses_it_sees_the_same(site: str, tmp_path: Path) -> None:
    found = {}
    for way, suffix in WAYS.items():
        async with world(site, suffix, tmp_path / way) as engine:
            served_by = engine.kernel.resources[site].adapter  # type: ignore[attr-defined]  # every resource has one
            assert served_by == {"shared": "web", "private": "process"}[way]
            found[way] = await observed(engine, site)
        assert statefork.audit(tmp_path / way / "state", world=True).clean
    for shared, private in zip(found["shared"], found["private"], strict=True):
        assert shared == private


FORMS = {
    "tracker": ("/login", {"#username": "ada", "#password": "password1"}, "#login-submit", "/my/page"),
    "wiki": (
        "/wiki/Special:UserLogin",
        {"#wpName1": "Ada", "#wpPassword1": "password of Ada"},
        "#wpLoginAttempt",
        "/wiki/Special:EditWatchlist",
    ),
}
"""Where the form is, its fields, its button, and a page that leads to the form who is not logged in."""


async def browsed(engine: Engine, site: str) -> list[tuple[object, ...]]:
    """What a browser shows before and after the login, in a fork, after a reset, and after a rollback."""
    host = f"http://{site}.example"
    form, fields, button, own = FORMS[site]
    seen: list[tuple[object, ...]] = []

    async def look(env: Environment) -> None:
        for path in ("/", own):
            shown = await env.act(Goto(host + path))
            text = re.sub("|".join(MASKS), "~", " ".join(shown.text.split()))
            seen.append((env.name, shown.observation.url, text))

    one = await engine.create("one")
    await look(one)
    await one.act(Goto(host + form))
    for selector, value in fields.items():
        await one.act(Fill(selector, value=value))
    await one.act(Click(button))
    await look(one)
    there = await one.snapshot()
    (child,) = await engine.fork(there, names=["child"])
    await one.reset()
    await look(child)
    await look(one)
    await one.restore(there)
    await look(one)
    return seen


@pytest.mark.browser
@each_of("tracker", "wiki")
async def test_a_browser_shows_the_same(site: str, tmp_path: Path) -> None:
    found = {}
    for way, suffix in WAYS.items():
        async with world(site, suffix, tmp_path / way, browser=True) as engine:
            found[way] = await browsed(engine, site)
        assert statefork.audit(tmp_path / way / "state", world=True).clean
    for shared, private in zip(found["shared"], found["private"], strict=True):
        assert shared == private
    own = f"http://{site}.example{FORMS[site][3]}"
    assert [url == own for _, url, _ in found["shared"][1::2]] == [False, True, True, False, True]
