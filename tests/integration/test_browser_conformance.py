"""The resource conformance suite on browser profiles: a key is an item of a page's localStorage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.adapters.resources.browser import Options
from statefork.adapters.resources.browser.resource import BrowserResource
from statefork.adapters.resources.conformance import Bench, Driver, ResourceConformance
from statefork.engine.ports import Resource, Services
from statefork.journal.values import Binding
from tests.integration.browser_kit import GuestResource, serving

pytestmark = pytest.mark.browser


class Pages:
    """Reaches the page behind a binding with Playwright's own object, from a plain thread."""

    def __init__(self, start: str) -> None:
        self.start = start
        self.made: list[BrowserResource] = []

    def make(self, services: Services) -> Resource:
        self.made.append(GuestResource("profile", Options(start=self.start), services))
        return self.made[-1]

    def evaluate(self, binding: Binding, expression: str, argument: Any) -> Any:
        for resource in self.made:
            entry = resource._open.get(binding.branch)
            if entry is not None and entry.session is not None and entry.binding == binding:
                page = entry.session.live.context.pages[0]
                loop = resource._thread._loop
                assert loop is not None
                return asyncio.run_coroutine_threadsafe(page.evaluate(expression, argument), loop).result(20)
        raise AssertionError(f"{binding.identity} is not bound")

    def write(self, binding: Binding, key: str, value: str) -> None:
        self.evaluate(binding, "([key, value]) => localStorage.setItem(key, value)", [key, value])

    def read(self, binding: Binding, key: str) -> str | None:
        found: str | None = self.evaluate(binding, "key => localStorage.getItem(key)", key)
        return found


class TestBrowserProfiles(ResourceConformance):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        with serving() as site:
            pages = Pages(f"{site.base}/page")
            yield Bench(
                make=pages.make, write=pages.write, read=pages.read, state=tmp_path / "state", base_dir=tmp_path
            )
            for resource in pages.made:
                anyio.run(resource.stop)

    async def test_inventory_reports_what_a_killed_engine_left(self, bench: Bench) -> None:
        """A branch lives in a context, and so ends with the engine: only sealed profiles are left."""
        one = Driver(bench)
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        two = Driver(bench)
        await two.resource.start()
        assert await two.handles() == sorted([base, sealed], key=repr)
        await two.resource.discard(branch)
        assert await two.seen(sealed, "key") == "value"
