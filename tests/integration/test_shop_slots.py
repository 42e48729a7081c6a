"""More shops than browser contexts."""

from __future__ import annotations

from pathlib import Path

import pytest

import statefork
from statefork import Settings
from statefork.actions import Click, Fill, Goto
from tests.integration.shop_kit import contexts, needs_shop, open_shop

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.shop, needs_shop]

SLOTS = 2
LOGIN = "http://shop.example/accounts/login/"


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def test_each_shop_keeps_its_basket_and_its_form_though_only_two_are_bound(tmp_path: Path) -> None:
    async with open_shop(tmp_path, settings=Settings(max_slots={"browser": SLOTS})) as engine:
        names = [f"shop-{number}" for number in range(4)]
        for number, name in enumerate(names):
            env = await engine.create(name)
            await env.act(Goto("http://shop.example/catalogue/"))
            for _ in range(number):
                await env.act(Click(role="button", name="Add to basket", nth=0))
            await env.act(Goto(LOGIN))
            await env.act(Fill(selector="#id_login-username", value=name))
            assert await contexts(engine) <= SLOTS
        assert engine.kernel.slots.taken == tuple(names[-SLOTS:])
        for number, name in enumerate(names):
            env = engine.environment(name)
            seen = await env.observe()
            assert (seen.url, name in seen.text) == (LOGIN, True)
            await env.act(Goto("http://shop.example/basket/"))
            rows = await env.evaluate(pieces)
            assert rows == number
            assert await contexts(engine) <= SLOTS
    assert statefork.audit(tmp_path).clean


async def pieces(seen: statefork.Evaluation) -> float:
    """How many pieces lie in the basket."""
    (row,) = seen.query("db", "SELECT coalesce(sum(quantity), 0) AS pieces FROM basket_line")
    return float(str(row["pieces"]))
