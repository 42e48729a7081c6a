"""Any moment of a wanderer's way through the shop is forked, sealed or not, and is the same world."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.python import Engine
from statefork.replay.auditing import audit
from tests.integration.shop_kit import needs_shop, open_shop, shopper

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.browser,
    pytest.mark.timeout(600),  # the first builds the base when the cache has none
    needs_shop,
]
ERRANDS = 4
ACTIONS = 15  # that they take, at least
AT_ONCE = 3
FIFTH = 5


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.mark.parametrize(
    ("seed", "policy"),
    [
        (25, "every action"),  # a log-in, a review, half a checkout; of these generations each fifth stays
        (12, "every 4 actions"),  # a log-in, a review, another name; of these generations only the newest stays
        (37, "on demand"),  # a log-in, something for the basket, tabs, back and forth
    ],
)
async def test_a_fork_of_any_action_is_the_same_world(tmp_path: Path, seed: int, policy: str) -> None:
    from statefork.worlds.shop.moments import compared, digests, fork_everywhere
    from statefork.worlds.shop.wanderers import Wanderer

    async with open_shop(tmp_path) as engine:
        env = await engine.create("wanderer")
        await env.keep_snapshots(policy)
        await env.keep_generations("last 1" if policy == "every 4 actions" else "all")
        await Wanderer(shopper(env, seed)).wander(ERRANDS)
        actions = env.capsule.actions
        assert actions >= ACTIONS
        known = None
        if policy == "every action":
            known = await digests(engine, env.name)
            assert set(known) == set(range(actions + 1))
            for number in range(FIFTH, actions, FIFTH):
                await engine.mark(f"{env.name}#{number}", "stays")
            gone = await env.prune("last 1")
            assert len(gone) == actions - 1 - len(range(FIFTH, actions, FIFTH))
        tried = await fork_everywhere(engine, env.name, seed=seed, tell=lambda _one: None, known=known, at_once=AT_ONCE)
        assert sorted(int(one.ref.partition("#")[2]) for one in tried) == list(range(1, actions + 1))
        assert [one for one in tried if not one.alike] == []
        assert {one.verdict for one in tried} <= {"sealed", "exact-observed"}
        if known:  # also of what was made again, and of which nothing was there to compare with
            assert all(set(one.holds) == {"db", "media", "search", "browser"} for one in tried), tried
            assert {name: found.total() for name, found in compared(tried).items()} == dict.fromkeys(
                ("db", "media", "search", "browser"), actions
            )
        assert env.capsule.actions == actions
    assert audit(tmp_path).clean


DAMAGES = {
    "a changed price": ("UPDATE partner_stockrecord SET price = price + 1", 6),
    "a lost session": ("DELETE FROM django_session", 5),
    "another title": ("UPDATE catalogue_product SET title = title || '!'", 6),
}
"""What is done to the re-executed world before its fifth action, and the action that shows it first."""


async def test_a_planted_difference_is_found_at_the_right_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop(tmp_path) as engine:
        env = await engine.create("env")
        agent = shopper(env)
        await agent.log_in(agent.customer)  # four actions
        await agent.open("/accounts/profile/")
        await agent.open(agent.articles[0].path)
        await agent.open("/")
        for number, (damage, (statement, shown)) in enumerate(DAMAGES.items(), 1):
            with monkeypatch.context() as patched:
                patched.setattr(engine.kernel, "act", damaged(engine, f"env-r{number}", statement))
                result = await engine.replay("env")
            assert (result.verdict, result.first_divergence) == ("diverged", shown), damage
            assert result.divergence is not None
            assert result.divergence.diff, damage


def damaged(engine: Engine, child: str, statement: str) -> Any:
    """The kernel's ``act``, which damages the database of the child before its fifth action."""
    act, asked = engine.kernel.act, []

    async def acting(name: str, action: Any, **more: Any) -> Any:
        if name == child:
            asked.append(action)
            if len(asked) == 5:
                path = engine.kernel.bindings(name)["db"].address["path"]
                with sqlite3.connect(str(path)) as database:
                    database.execute(statement)
        return await act(name, action, **more)

    return acting
