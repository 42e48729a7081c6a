"""The shop over PostgreSQL: the same application, its rows in a database per environment on one server."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.resources.browser.actions import Click, Goto
from statefork.adapters.resources.web import WebResource
from statefork.engine.errors import RuntimeDied
from statefork.journal.events import ActionEnded, GenerationPublished
from statefork.replay.auditing import audit
from statefork.worlds.shop import agents, catalogue, evaluators
from statefork.worlds.shop.agents import SITE, Shopper
from tests.integration.postgres_kit import database, needs_postgres, run
from tests.integration.shop_kit import events, judged, needs_shop, open_shop, shopper

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.browser,
    pytest.mark.timeout(600),  # the first builds the base when the cache has none
    needs_shop,
    needs_postgres,
]
MARKER = "quetzal"
_COLUMNS = """
SELECT format('SELECT %L, count(*) FROM %I WHERE %I::text ILIKE %L', table_name, table_name, column_name, %s::text)
FROM information_schema.columns WHERE table_schema = 'public'
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def test_logins_baskets_and_reviews_of_siblings(tmp_path: Path) -> None:
    async with open_shop(tmp_path, contract="shop-postgres") as engine:
        parent = await engine.create("parent")
        origin = await database(engine).digest(parent.capsule.head.manifest["db"].sealed)
        agent = shopper(parent)
        await agents.begin_checkout(agent)  # logged in, with a line in the basket
        here, there = await engine.fork("parent", names=["here", "there"], n=2)
        for sibling in (here, there):
            assert (await judged(sibling, evaluators.in_mid_checkout, agent)).failed == ()
        async with anyio.create_task_group() as group:  # the same unique key in two databases
            for sibling in (here, there):
                group.start_soon(agents.review_when_logged_in, shopper(sibling))
        for sibling in (here, there):
            assert (await judged(sibling, evaluators.reviewed, shopper(sibling))).failed == ()
        run(here, "UPDATE reviews_productreview SET title = %s WHERE id > %s", MARKER, catalogue.REVIEWS)
        await nobody_else_has_it(here, there, parent, agent=shopper(there))
        await there.restore(1)
        assert (await judged(there, evaluators.in_mid_checkout, agent)).failed == ()
        await here.reset()
        assert (await judged(here, evaluators.untouched, agent)).failed == ()
        assert await database(engine).digest(here.capsule.head.manifest["db"].sealed) == origin
        await what_only_reads_is_not_made_anew(engine, here, there)
        await a_killed_database_is_told_and_comes_back(engine, parent)
    assert audit(tmp_path).clean


async def nobody_else_has_it(owner: Environment, *others: Environment, agent: Shopper) -> None:
    """A word that one environment wrote is in its database and page, and in none of another's."""
    page = f"{SITE}{agent.articles[0].path}"
    assert MARKER in (await owner.act(Goto(page))).text
    assert found(owner) == {"reviews_productreview"}
    for other in others:
        assert found(other) == set()
        async with other.page() as native:
            answer = await native.request.get(page)
            assert MARKER not in await answer.text()


def found(env: Environment) -> set[str]:
    """The tables in which the marker stands in any column."""
    query = " UNION ALL ".join(
        statement for (statement,) in run(env, _COLUMNS.replace("%L", "%%L").replace("%I", "%%I"), f"%{MARKER}%")
    )
    return {table for table, count in run(env, query) if count}


async def a_killed_database_is_told_and_comes_back(engine: Engine, env: Environment) -> None:
    """SIGKILL of PostgreSQL under an action: that one is lost, by name, and nothing else is."""
    await env.act(Goto(f"{SITE}/catalogue/"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill_while_it_answers, engine, env)
        with pytest.raises(RuntimeDied, match=r"failed under action click.*POST .*/basket/add/.*database 'default'"):
            await env.act(Click(role="button", name="Add to basket", nth=0))
    with anyio.fail_after(60):
        seen = await env.act(Goto(f"{SITE}/basket/"))  # once the server is there again
    assert "Logout" in seen.text
    assert run(env, "SELECT count(*) FROM basket_line") == [(1,)]
    ended = await events(engine, env.name, ActionEnded)
    assert [event.outcome for event in ended if isinstance(event, ActionEnded)][-3:] == ["ok", "unknown", "ok"]
    await env.snapshot()


async def kill_while_it_answers(engine: Engine, env: Environment) -> None:
    """When the shop works on a request of the environment. It stands before a lock of ours."""
    server = engine.kernel.resources["shop"]
    assert isinstance(server, WebResource)
    branch = engine.kernel.branches(env.name)["shop"]
    admin = database(engine).backend.admin
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.basket_line'::regclass"
    with closing(admin.connect(str(env.bindings["db"].address["name"]))) as raw:
        raw.execute("BEGIN; LOCK TABLE public.basket_line IN ACCESS EXCLUSIVE MODE")
        while not (await server.pending(branch) and raw.execute(waiting).fetchone() != (0,)):
            await anyio.lowlevel.checkpoint()
        os.kill(database(engine).process_ids()[0], signal.SIGKILL)


async def what_only_reads_is_not_made_anew(engine: Engine, *envs: Environment) -> None:
    """Staging opens sessions that read and stay; no database is branched twice for them."""
    made: list[Any] = []
    resource = database(engine)
    branch = resource.branch

    async def counted(*given: Any) -> Any:
        made.append(given)
        return await branch(*given)

    resource.branch = counted  # type: ignore[method-assign]  # to count
    for env in envs:
        await env.reset()
        (*_, published) = await events(engine, env.name, GenerationPublished)
        assert isinstance(published, GenerationPublished)
        assert published.op == "reset"
    assert len(made) == len(envs)
