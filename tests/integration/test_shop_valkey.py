"""The shop with its cache and its sessions on a Valkey server: logins follow their environment, caches begin anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.interfaces.worlds import packaged_worlds
from statefork.adapters.resources.browser.actions import Goto
from statefork.adapters.resources.valkey.resource import ValkeyResource
from statefork.replay.auditing import audit
from statefork.worlds.shop.agents import SITE, Shopper
from statefork.worlds.shop.build import cached
from statefork.worlds.shop.evaluators import Books
from tests.contract.valkey_kit import client, key, missing_valkey
from tests.integration.shop_kit import needs_shop, shopper

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.browser,
    pytest.mark.timeout(600),  # the first builds the base when the cache has none
    needs_shop,
    pytest.mark.skipif(bool(missing_valkey()), reason=missing_valkey() or "the server is here"),
]
MARKER = "quetzal"
PROGRAM = 'call = "statefork.worlds.shop.index:build"'


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """The packaged one, whose index is a copy of the base's: to make it from the database takes many seconds."""
    text = packaged_worlds()["shop-valkey"].read_text()
    assert PROGRAM in text
    index = cached(lambda fraction, text: None) / "search"
    file = tmp_path / "shop.toml"
    file.write_text(text.replace(PROGRAM, f'command = ["cp", "-r", "{index}/.", "{{output}}"]'))
    return file


async def test_logins_follow_their_environment_and_caches_do_not(contract: Path, tmp_path: Path) -> None:
    async with open_engine(contract, state=tmp_path / "state") as engine:
        here = await engine.create("here")
        agent = shopper(here)
        await agent.log_in(agent.customer)
        await agent.put_in_basket(agent.articles[0])
        assert sessions_in_the_database(here) == 0
        mark(here)
        kept = await here.snapshot()
        assert marked(engine) == {("cache", "here"), ("sessions", "here")}
        (child,) = await engine.fork(kept, n=1)
        assert marked(engine) == {("cache", "here"), ("sessions", "here"), ("sessions", child.name)}
        reaches_nothing_of(child, here)
        await agent.follow("Logout")
        assert [await logged_in(env, agent) for env in (here, child)] == [False, True]
        assert agent.articles[0].title in (await child.act(Goto(f"{SITE}/basket/"))).text
        await here.restore(kept)
        assert await logged_in(here, agent)
        assert marked(engine) == {("sessions", "here"), ("sessions", child.name)}, "the cache begins empty"
        await here.reset()
        assert not await logged_in(here, agent)
        assert marked(engine) == {("sessions", child.name)}
        clone = await engine.clone(kept, "clone")
        await shopper(clone).follow("Logout")
        await clone.reset()
        assert await logged_in(clone, agent), "its origin is the moment that it was cloned from"
    report = audit(tmp_path / "state")
    assert report.clean, report


async def logged_in(env: Environment, agent: Shopper) -> bool:
    """Whether the account page shows the customer."""
    return agent.customer in (await env.act(Goto(f"{SITE}/accounts/profile/"))).text


def sessions_in_the_database(env: Environment) -> object:
    return Books.at(Path(str(env.bindings["db"].address["path"]))).value("SELECT count(*) FROM django_session")


def mark(env: Environment) -> None:
    """A word in both namespaces, under one name."""
    for resource in ("cache", "sessions"):
        with client(env.bindings[resource]) as server:
            server.set(key(env.bindings[resource], "bird"), MARKER)


def marked(engine: Engine) -> set[tuple[str, str]]:
    """Whose namespaces have the word in any key; everything that is on the servers was looked at."""
    prefixes = {
        str(env.bindings[resource].address["prefix"]): (resource, env.name)
        for env in engine.environments()
        for resource in ("cache", "sessions")
    }
    found = set()
    for resource in ("cache", "sessions"):
        behind = engine.kernel.resources[resource]
        assert isinstance(behind, ValkeyResource)
        assert behind._admin is not None
        ask, names = behind._admin.ask, behind._admin.keys("")
        found |= {name.decode() for name in names if MARKER.encode() in ask("DUMP", name)}
    owners = [[whose for prefix, whose in prefixes.items() if name.startswith(prefix)] for name in found]
    assert all(len(whose) == 1 for whose in owners), found
    return {whose for (whose,) in owners}


def reaches_nothing_of(env: Environment, other: Environment) -> None:
    """What the other keeps now is not under the same name, nor to be had under the other's."""
    for resource, own in (("cache", None), ("sessions", MARKER)):
        with client(env.bindings[resource]) as server:
            assert server.get(key(env.bindings[resource], "bird")) == own
            with pytest.raises(Exception, match=r"(?i)permission"):
                server.get(key(other.bindings[resource], "bird"))
