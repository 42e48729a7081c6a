"""The shop in a file: database, trees, profile and past; taken in again they look and replay as they did."""

from __future__ import annotations

from pathlib import Path

import pytest

import statefork
from statefork.actions import Click, Goto
from tests.integration.shop_kit import needs_shop, open_shop, seeded

pytestmark = [pytest.mark.anyio, pytest.mark.shop, pytest.mark.browser, needs_shop]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_basket_is_carried_and_replayed(tmp_path: Path) -> None:
    file = tmp_path / "shop.statefork"
    async with open_shop(seeded(tmp_path / "state")) as engine:
        env = await engine.create("shop-1")
        await env.act(Goto("http://shop.example/search/?q=mug"))
        await env.act(Click(role="button", name="Add to basket", nth=0))
        seen = await env.act(Goto("http://shop.example/basket/"))
        sent = await engine.export("shop-1", file)
        made = await engine.import_(file, "carried")
        assert (made.sha256, made.size.actions, made.source) == (sent.sha256, 3, sent.ref)
        assert (await engine.environment("carried").observe()).observation.digest == seen.observation.digest
        again = await engine.replay("carried", states=False)
        assert again.exact, again
    report = statefork.audit(tmp_path / "state", world=True)
    assert report.clean, report
