"""The shop as plain Django: what its base holds, and that the agents do on a private server what evaluators expect."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, async_playwright

from statefork.adapters.resources.browser.actions import Action, Click, Fill, Goto, Scroll
from statefork.adapters.resources.browser.chromium import find_chromium, launch_flags
from statefork.worlds.shop import agents, catalogue, evaluators
from statefork.worlds.shop.agents import Agent, Shopper
from statefork.worlds.shop.evaluators import Books, Judge
from tests.integration.shop_kit import needs_shop, private_shop, seeded

pytestmark = [pytest.mark.shop, pytest.mark.timeout(600), needs_shop]  # the first may have to build the base

POSTED = evaluators.ordered(delivery="Post", quantity=1, town=agents.NEW_ADDRESS["line4"])
GUEST = evaluators.ordered(delivery="Post", quantity=1, town=agents.NEW_ADDRESS["line4"], guest=True)


class PlainFace:
    """The agents' face over a plain Playwright page: a throw-away executor, so that only the shop is under test."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def act(self, action: Action, /) -> Any:
        """Carry out one of the actions that the shop's agents use."""
        match action:
            case Goto():
                await self.page.goto(action.url)
            case Fill():
                await self._find(action).fill(action.value)
            case Scroll():
                await self.page.mouse.wheel(action.dx, action.dy)
            case Click():
                await self._find(action).click()
                await self.page.wait_for_load_state("networkidle")  # scripts redraw the basket

    def _find(self, action: Any) -> Any:
        where = (
            self.page.locator(action.selector)
            if action.selector
            else self.page.get_by_role(action.role, name=action.name, exact=action.exact)
        )
        return where.nth(action.nth) if action.nth is not None else where


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # Playwright's own; no engine is involved


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    executable = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=launch_flags(executable))
        yield await browser.new_page(viewport={"width": 1280, "height": 900})
        await browser.close()


def test_the_base_is_what_the_catalogue_says(tmp_path: Path) -> None:
    (base,) = (seeded(tmp_path) / "worlds").iterdir()
    articles = list(catalogue.articles())
    with closing(sqlite3.connect(base / "shop.sqlite3")) as database:
        rows = database.execute(
            "SELECT p.id, p.upc, p.title, s.price, s.num_in_stock, i.original FROM catalogue_product p"
            " JOIN partner_stockrecord s ON s.product_id = p.id JOIN catalogue_productimage i ON i.product_id = p.id"
            " ORDER BY p.id"
        ).fetchall()
        reviews, statistics = (
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("reviews_productreview", "sqlite_stat1")
        )
    assert [(a.number, a.upc, a.title, float(a.price), a.stock, a.image) for a in articles] == rows
    assert reviews == catalogue.REVIEWS
    assert statistics > 0, "ANALYZE was forgotten: some basket queries then take seconds"
    assert all((base / "media" / article.image).read_bytes().startswith(b"\x89PNG") for article in articles)
    assert not list(base.glob("*-wal")), "the base is one plain file"


@pytest.mark.anyio
@pytest.mark.browser
@pytest.mark.parametrize(
    ("scripts", "judge"),
    [
        ([agents.fill_basket], evaluators.basket_filled),
        ([agents.write_review], evaluators.reviewed),
        ([agents.order_as_guest], GUEST),
        ([agents.begin_checkout, agents.finish_to_new_address], POSTED),
    ],
    ids=lambda value: value[-1].__name__ if isinstance(value, list) else "",
)
async def test_agents_and_evaluators_agree_on_a_private_server(
    scripts: list[Agent], judge: Judge, tmp_path: Path, page: Page
) -> None:
    with private_shop(tmp_path / "shop") as site:
        shopper = Shopper(PlainFace(page), seed=5, site=site)
        for script in scripts:
            await script(shopper)
        text = await page.locator("body").aria_snapshot()
        books = Books.at(tmp_path / "shop" / "shop.sqlite3")
        assert evaluators.score(judge, books, evaluators.Page(page.url, text), shopper).failed == ()


def test_pages_need_nothing_from_elsewhere(tmp_path: Path) -> None:
    with private_shop(tmp_path / "shop") as site, httpx.Client(base_url=site, trust_env=False) as client:
        text = client.get("/catalogue/").text
        assert "https://" not in text, "a page that asks the internet for a script is slow and not reproducible"
        style = client.get("/static/oscar/css/styles.css")
        assert style.status_code == 200
        assert "immutable" in style.headers["cache-control"]
        again = client.get("/static/oscar/css/styles.css", headers={"If-None-Match": style.headers["etag"]})
        assert again.status_code == 304
        assert client.get("/static/../settings.py").status_code == 404
        article = next(catalogue.articles())
        assert client.get(f"/media/{article.image}").content.startswith(b"\x89PNG")
        assert client.get("/media/../shop.sqlite3").status_code == 404
        assert client.get("/", headers={"Host": "other.example"}).status_code == 400


def test_an_edit_changes_the_search_index(tmp_path: Path) -> None:
    with private_shop(tmp_path / "shop") as site, httpx.Client(base_url=site, trust_env=False) as client:
        article = next(catalogue.articles())
        assert article.title in client.get("/search/", params={"q": article.title}).text
        login = client.get("/accounts/login/").text
        form = {"csrfmiddlewaretoken": _token(login), "login_submit": "Log In", "login-redirect_url": ""}
        form |= {"login-username": catalogue.ADMIN_EMAIL, "login-password": catalogue.ADMIN_PASSWORD}
        client.post("/accounts/login/", data=form)
        edit = f"/admin/catalogue/product/{article.number}/change/"
        fields = _fields(client.get(edit).text) | {"title": "Zephyrium Orrery", "_save": "Save"}
        assert client.post(edit, data=fields).status_code == 302
        assert "Zephyrium Orrery" in client.get("/search/", params={"q": "zephyrium"}).text


def _token(html: str) -> str:
    return _fields(html)["csrfmiddlewaretoken"]


def _fields(html: str) -> dict[str, str]:
    """What a browser would send if the page's forms were submitted as they are (the first value of each name)."""
    found: dict[str, str] = {}

    class Parser(HTMLParser):
        area = select = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            name = given.get("name") or ""
            if tag == "input" and name and given.get("type") not in ("submit", "file"):
                if given.get("type") not in ("checkbox", "radio") or "checked" in given:
                    found.setdefault(name, given.get("value") or ("on" if given.get("type") == "checkbox" else ""))
            elif tag == "textarea" and name:
                self.area = name
                found.setdefault(name, "")
            elif tag == "select":
                self.select = name
            elif tag == "option" and "selected" in given and self.select:
                found.setdefault(self.select, given.get("value") or "")

        def handle_data(self, data: str) -> None:
            if self.area:
                found[self.area] += data.removeprefix("\n")

        def handle_endtag(self, tag: str) -> None:
            if tag == "textarea":
                self.area = ""

    Parser().feed(html)
    return found
