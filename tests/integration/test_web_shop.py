"""django-oscar on the shared server: nothing of one environment shows in another's pages or stays in the process.

The administrator of environment A writes a marker wherever the shop keeps text; then B's pages, and after A's release
every live object of the server, are searched for it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import httpx
import pytest

from statefork.adapters.interfaces.gateway import open_gateway
from statefork.adapters.resources.web import Options, WebResource, make
from statefork.engine.ports import Needs, Owner, Services
from statefork.journal.values import Binding
from tests.integration.forms_kit import Admin
from tests.integration.gateway_kit import Doorkeeper
from tests.integration.shop_kit import needs_shop, seeded
from tests.integration.web_kit import PROJECT

pytestmark = [pytest.mark.anyio, pytest.mark.shop, needs_shop]

MARK = "Zyxmark" + "quuxlorp"
STORES = {"database": "db", "media": "media", "search": "search"}
PAGES = (
    "/",
    "/catalogue/",
    "/search/?q=lamp",
    "/dashboard/",
    "/dashboard/catalogue/",
    "/accounts/",
    "/admin/sites/site/",
)


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Shop:
    """The shop's server with environments bound to copies of its base."""

    def __init__(self, web: WebResource, keeper: Doorkeeper, base: Path, tmp: Path) -> None:
        self.web = web
        self.keeper = keeper
        self.base = base
        self.tmp = tmp

    @asynccontextmanager
    async def place(self, env: str, epoch: int = 1) -> AsyncIterator[tuple[Path, Admin]]:
        """An environment and its administrator, logged in."""
        identity = self.keeper.add(env, epoch, epoch)
        root = self.tmp / f"{env}-{epoch}"
        await anyio.to_thread.run_sync(shutil.copytree, self.base, root)
        paths = {"db": root / "shop.sqlite3", "media": root / "media", "search": root / "search"}
        needs = Needs(
            bindings={
                name: Binding(
                    journal="j", resource=name, adapter="x", branch="b", identity=identity, address={"path": str(path)}
                )
                for name, path in paths.items()
            }
        )
        branch = await self.web.branch(await self.web.provision(), Owner(env=env, epoch=epoch))
        binding = await self.web.bind(branch, identity, needs)
        await self.web.probe(binding)
        base_url = str(binding.address["base_url"])
        async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=60, follow_redirects=True) as client:
            admin = Admin(client)
            await admin.log_in()
            yield root, admin
        await self.web.unbind(binding)


@asynccontextmanager
async def open_server(tmp: Path, settings: str = "scanned.settings") -> AsyncIterator[Shop]:
    keeper = Doorkeeper()
    state = tmp / "state"
    state.mkdir()
    (base,) = (seeded(state) / "worlds").iterdir()
    async with open_gateway(keeper) as gateway:
        services = Services(state=state, journal="j", blobs=None, gateway=gateway, base_dir=PROJECT)
        options = Options(stack="django", settings=settings, host="shop.example", path=".", stores=STORES)
        web = make("shop", options, services)
        await web.start()
        try:
            yield Shop(web, keeper, base, tmp)
        finally:
            await web.stop()


async def mark_everything(root: Path, admin: Admin) -> None:
    """The marker in the site, a product, a category, a flat page, a review, a letter, a search and the user's name."""
    low = MARK.lower()
    with closing(sqlite3.connect(root / "shop.sqlite3")) as raw:
        (product, slug) = raw.execute(
            "SELECT id, slug FROM catalogue_product WHERE structure = 'standalone'"
        ).fetchone()
        (category,) = raw.execute("SELECT id FROM catalogue_category").fetchone()
        (user,) = raw.execute("SELECT id FROM auth_user WHERE username = 'admin'").fetchone()
    changes = {
        "/admin/sites/site/1/change/": ("site_form", {"name": f"{MARK} site", "domain": f"{low}.example"}),
        f"/admin/catalogue/product/{product}/change/": ("product_form", {"title": f"{MARK} lamp"}),
        f"/admin/catalogue/category/{category}/change/": ("category_form", {"name": f"{MARK} things"}),
        f"/admin/auth/user/{user}/change/": ("user_form", {"first_name": MARK}),
        "/admin/flatpages/flatpage/add/": (
            "flatpage_form",
            {"url": f"/{low}/", "title": MARK, "content": f"{MARK} body", "sites": "1"},
        ),
        f"/catalogue/{slug}_{product}/reviews/add/": ("score", {"title": MARK, "score": "5", "body": MARK}),
    }
    for path, (form, values) in changes.items():
        page = await admin.fill(path, form, **values)
        assert page.status_code == 200, (path, page.status_code)
        assert "errorlist" not in page.text, path
        assert "error below" not in page.text, path
    for path in (*PAGES, f"/{low}/", f"/catalogue/{slug}_{product}/", f"/search/?q={low}"):
        assert (await admin.get(path)).status_code == 200, path
    assert MARK in (await admin.get(f"/search/?q={low}")).text, "the search index knows the product's new title"


async def nothing_crosses(shop: Shop) -> None:
    """B's pages while A is there, and the whole process once A is gone, have nothing of A."""
    async with shop.place("b") as (_, bystander):
        for path in PAGES:
            await bystander.get(path)
        async with shop.place("a") as (root, admin):
            await mark_everything(root, admin)
            for path in (*PAGES, f"/{MARK.lower()}/"):
                assert MARK not in (await bystander.get(path)).text, path
        for mark in (MARK, MARK.lower()):
            left = (await bystander.get(f"/scan/?a={mark[:6]}&b={mark[6:]}")).json()
            assert left == {"paths": [], "holders": []}
        # last, for what B searches for is B's own, also in the caches of its index
        assert f"{MARK} lamp" not in (await bystander.get(f"/search/?q={MARK}")).text


async def test_nothing_of_one_shop_shows_in_another_or_stays_behind(tmp_path: Path) -> None:
    async with open_server(tmp_path) as shop:
        await nothing_crosses(shop)


async def test_the_search_finds_what_a_missing_guard_lets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_SETTINGS", "scanned.settings")
    monkeypatch.setenv("NOTES_WITHOUT", "django_stack.modules:_split_sites")
    async with open_server(tmp_path, "notes.without") as shop:
        with pytest.raises(AssertionError):
            await nothing_crosses(shop)


async def test_a_restored_shop_meets_nothing_of_the_abandoned_future(tmp_path: Path) -> None:
    async with open_server(tmp_path) as shop, shop.place("a") as (root, admin):
        await mark_everything(root, admin)
        async with shop.place("a", epoch=2) as (_, restored):
            for path in (*PAGES, f"/{MARK.lower()}/"):
                assert MARK not in (await restored.get(path)).text, path
            assert f"{MARK} lamp" not in (await restored.get(f"/search/?q={MARK}")).text
