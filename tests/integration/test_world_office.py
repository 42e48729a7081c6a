"""Three real sites in one world: their people are logged in under one generation, and nothing of one environment is
met in another, while eight of them are used, reset and forked side by side."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.replay.auditing import audit
from statefork.worlds.office import people
from tests.integration.document_kit import Shell, blocks
from tests.integration.forms_kit import Admin
from tests.integration.postgres_kit import needs_postgres, run
from tests.integration.shop_kit import needs_shop
from tests.integration.stack_kit import Tracker, Wiki, missing

GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/serve-real-sites.md"
SITES = ("shop", "tracker", "wiki")
LACKING = missing(Tracker()) or missing(Wiki())

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.sites,
    pytest.mark.timeout(600),
    needs_shop,
    needs_postgres,
    pytest.mark.skipif(bool(LACKING), reason=LACKING),
]

ENVIRONMENTS = 8
ROUNDS = 3
TITLE = "Harbour"  # the same for all: what differs is what is written under it


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@asynccontextmanager
async def office(tmp_path: Path) -> AsyncIterator[Engine]:
    async with open_engine("office", state=tmp_path / "state") as engine:
        yield engine


class Shop:
    """The shop as the stack kit's sites: what is written is a review."""

    name = "shop"

    async def login(self, client: httpx.AsyncClient) -> None:
        await Admin(client).log_in()

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return (await client.get("/admin/", follow_redirects=False)).status_code == 200

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> str:
        product = re.search(r'href="(/catalogue/[\w-]+_\d+/)"', (await client.get("/catalogue/")).text)
        assert product is not None
        made = await Admin(client).fill(f"{product[1]}reviews/add/", "score", title=title, score="5", body=text)
        assert made.status_code == 200
        assert "errorlist" not in made.text
        return product[1]

    async def found(self, client: httpx.AsyncClient, word: str) -> int:
        page = await client.get("/dashboard/reviews/", params={"keyword": word, "status": ""})
        return page.text.count('name="selected_review"')

    def texts(self, env: Any, title: str) -> list[str]:
        return [row[0] for row in run(env, "SELECT body FROM reviews_productreview WHERE title = %s", title)]


KIT: dict[str, Any] = {"shop": Shop(), "tracker": Tracker(), "wiki": Wiki()}


def part(env: Environment, site: str) -> Any:
    """An environment as a world of that one site would show it."""
    return SimpleNamespace(
        bindings={name: env.bindings[f"{site}-{name}"] for name in ("db", "media")}, base_url=env.base_url
    )


def texts(env: Environment, site: str) -> list[str]:
    return sorted(KIT[site].texts(part(env, site), TITLE))


@pytest.mark.browser
async def test_one_environment_is_logged_in_everywhere_and_so_are_its_children(tmp_path: Path) -> None:
    async with office(tmp_path) as engine:
        env = await engine.create("one")
        assert await people.known_to(env) == {"shop": False, "tracker": False, "wiki": False}
        await people.log_in(env)
        assert await people.known_to(env) == dict.fromkeys(SITES, True)
        there = await env.snapshot()
        (child,) = await engine.fork("one")
        await env.reset()
        assert await people.known_to(child) == dict.fromkeys(SITES, True)
        assert await people.known_to(env) == dict.fromkeys(SITES, False)
        await env.restore(there)
        assert await people.known_to(env) == dict.fromkeys(SITES, True)
        (again,) = await engine.fork("one#3")  # no generation stands there: the recorded actions are done again
        assert again.made is not None
        assert again.made.verdict in ("exact-state", "exact-observed", "equivalent"), again.made
        servers = {name: engine.kernel.resources[name].process_ids() for name in ("shop-db", "tracker-db", "wiki-db")}  # type: ignore[attr-defined]  # resident
        assert len({pids[0] for pids in servers.values()}) == 1, "one PostgreSQL for all"
    assert audit(tmp_path / "state").clean


class Person:
    """Who uses one environment over HTTP, and knows what must be there."""

    def __init__(self, engine: Engine, env: Environment, number: int) -> None:
        self.engine = engine
        self.env = env
        self.number = number
        self.random = Random(number)
        self.written: dict[str, list[str]] = {site: [] for site in SITES}
        self.children: list[Environment] = []

    async def use(self, others: set[str], turn: int) -> None:
        """Log in and write under equal titles on all sites, in an order of one's own; meet nobody else's words."""
        async with AsyncExitStack() as stack:
            for site in self.random.sample(SITES, len(SITES)):
                address = self.env.base_url(site)
                client = await stack.enter_async_context(
                    httpx.AsyncClient(base_url=address, timeout=60, trust_env=False, follow_redirects=True)
                )
                assert not await KIT[site].is_logged_in(client)
                await KIT[site].login(client)
                word = f"zq{self.number}x{turn}x{site}"
                await KIT[site].add(client, TITLE, f"written as {word}")
                if site == "wiki":
                    self.written[site] = []  # a page has one text
                self.written[site].append(f"written as {word}")
                assert await KIT[site].found(client, word) > 0, word
                foreign = self.random.choice(sorted(others))
                assert await KIT[site].found(client, foreign) == 0, foreign
        self.look()

    def look(self) -> None:
        """What is in the databases is what was written here."""
        assert {site: texts(self.env, site) for site in SITES} == {
            site: sorted(one) for site, one in self.written.items()
        }

    async def go_back(self) -> None:
        """All of it is gone at once, and a login of before is none."""
        async with AsyncExitStack() as stack:
            clients = {}
            for site in SITES:
                clients[site] = await stack.enter_async_context(
                    httpx.AsyncClient(
                        base_url=self.env.base_url(site), timeout=60, trust_env=False, follow_redirects=True
                    )
                )
                await KIT[site].login(clients[site])
            await self.env.reset()
            self.written = {site: [] for site in SITES}
            for site, client in clients.items():
                client.base_url = httpx.URL(self.env.base_url(site))
                assert not await KIT[site].is_logged_in(client), site
        self.look()

    async def branch(self) -> None:
        """A child has what was written until then, and what it writes is not met in its source."""
        (child,) = await self.engine.fork(self.env.name)
        heir = Person(self.engine, child, self.number + 100)
        heir.written = {site: list(one) for site, one in self.written.items()}
        heir.look()
        await heir.use({f"zq{self.number}x99x{site}" for site in SITES}, 1)
        await child.retire()
        self.look()


async def test_eight_environments_meet_nothing_of_each_other(tmp_path: Path) -> None:
    async with office(tmp_path) as engine:
        people_ = [Person(engine, await engine.create(f"env-{n}"), n) for n in range(ENVIRONMENTS)]
        for turn in range(ROUNDS):
            said = {one.number: {f"zq{one.number}x{turn}x{site}" for site in SITES} for one in people_}

            async def one_turn(person: Person, turn: int = turn, said: dict[int, set[str]] = said) -> None:
                others = set().union(*(words for number, words in said.items() if number != person.number))
                await person.use(others, turn)
                match (person.number + turn) % 4:
                    case 0:
                        await person.go_back()
                    case 1:
                        await person.branch()
                    case 2:
                        await person.env.park()
                        await person.env.activate()

            async with anyio.create_task_group() as tasks:
                for person in people_:
                    tasks.start_soon(one_turn, person)
            for person in people_:
                person.look()
    assert audit(tmp_path / "state").clean


@pytest.mark.browser
def test_the_guide_does_what_it_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        for block in blocks(GUIDE.read_text(encoding="utf-8")):
            shell.run(block)
    finally:
        subprocess.run(["statefork", "world", "down"], cwd=tmp_path, env=shell.environment, check=True)
