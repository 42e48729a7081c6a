"""What users of such systems complain of, tried on the real shop: each test is a complaint that must not hold here."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.resources.browser.actions import Goto, NewTab, SwitchTab
from statefork.journal.events import RequestRefused
from statefork.worlds.shop import agents, catalogue, evaluators
from statefork.worlds.shop.agents import SITE, Agent
from statefork.worlds.shop.evaluators import Books, Judge
from tests.integration.shop_kit import events, judged, needs_shop, seeded, shopper

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.browser,
    pytest.mark.timeout(600),  # the first builds the base when the cache has none
    needs_shop,
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"


def books(env: Environment) -> Books:
    """The environment's database as a file, read by a connection of our own."""
    return Books.at(Path(str(env.bindings["db"].address["path"])))


def media(env: Environment) -> Path:
    """The environment's media directory."""
    return Path(str(env.bindings["media"].address["path"]))


async def fetch(env: Environment, path: str) -> httpx.Response:
    """A request of a client that knows nothing of statefork."""
    async with httpx.AsyncClient(base_url=env.base_url("shop"), trust_env=False, timeout=30) as client:
        return await client.get(path)


async def heads_digests(engine: Engine, env: Environment) -> dict[str, str]:
    """Content digest of every component of the published generation, computed anew by its adapter."""
    resources = engine.kernel.resources
    return {
        name: await resources[name].digest(component.sealed) for name, component in env.capsule.head.manifest.items()
    }


async def test_two_siblings_insert_the_same_unique_key(shop: Engine) -> None:
    """Case 1: both succeed, and each sees one row. In the shop a customer reviews an article once."""
    parent = await shop.create("twins-parent")
    agent = shopper(parent)
    await agent.log_in(agent.customer)
    siblings = await shop.fork("twins-parent", n=2)
    async with anyio.create_task_group() as group:
        for sibling in siblings:
            group.start_soon(agents.review_when_logged_in, shopper(sibling))
    for sibling in siblings:
        assert (await judged(sibling, evaluators.reviewed, shopper(sibling))).failed == ()
    assert (await judged(parent, evaluators.not_reviewed, agent)).failed == ()


async def test_order_and_company_change_no_answers(shop: Engine) -> None:
    """Case 2: the same tasks one after the other, in the opposite order, and all at once give the same answers."""
    tasks: dict[str, tuple[Agent, Judge]] = {
        "basket": (agents.fill_basket, evaluators.basket_filled),
        "review": (agents.write_review, evaluators.reviewed),
        "search": (agents.look_around, evaluators.looked_around),
    }

    async def answer(way: str, task: str, answers: dict[str, Any]) -> None:
        env = await shop.create(f"{way}-{task}")
        agent = shopper(env)
        await tasks[task][0](agent)
        verdict = await judged(env, tasks[task][1], agent)
        answers[task] = (verdict.value, verdict.detail(), (await env.observe()).digest)

    forwards: dict[str, Any] = {}
    backwards: dict[str, Any] = {}
    together: dict[str, Any] = {}
    for task in tasks:
        await answer("forwards", task, forwards)
    for task in reversed(tasks):
        await answer("backwards", task, backwards)
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(answer, "together", task, together)
    assert forwards == backwards == together
    assert [forwards[task][0] for task in tasks] == [1.0, 1.0, 1.0]


async def test_what_is_shown_once_is_shown_in_forks(shop: Engine) -> None:
    """The shop says once that a profile was saved: in a fork the page says so, and so it does in a tab behind."""
    env = await shop.create("shown-once")
    agent = shopper(env)
    await agent.log_in(agent.customer)
    await agent.open("/accounts/profile/edit/")
    await agent.fill(last_name="Seaborn")
    saved = await agent.press("Save")
    assert "Profile updated" in saved.text
    (first,) = await shop.fork(await env.snapshot())
    assert (await first.observe()).digest == saved.digest
    await env.act(NewTab(f"{SITE}/"))
    kept = await env.snapshot()
    await agent.scroll(30)
    shown = await env.act(SwitchTab(0))
    assert "Profile updated" in shown.text
    (second,) = await shop.fork(f"shown-once#{env.capsule.actions - 1}")
    assert second.made is not None
    assert (second.made.verdict, second.made.source) == ("exact-observed", shop.moment(kept))
    assert (await second.act(SwitchTab(0))).digest == shown.digest
    for one in (env, first, second):
        await one.retire()


async def test_logged_in_here_and_there_both_stay(shop: Engine) -> None:
    """Case 4: sites that share a host name and a browser do not overwrite each other's session cookie."""
    here, there = await shop.create("browser-here"), await shop.create("browser-there")
    first, second = shopper(here, seed=1), shopper(there, seed=2)
    await first.log_in(first.customer)
    await second.log_in(second.customer)
    for env, agent, other in ((here, first, second), (there, second, first), (here, first, second)):
        seen = await env.act(Goto(f"{SITE}/accounts/profile/"))
        assert agent.customer in seen.text
        assert other.customer not in seen.text
    count = "SELECT count(*) FROM django_session"
    assert [books(env).value(count) for env in (here, there)] == [1, 1]


async def test_one_cookie_jar_keeps_both_logins(shop: Engine) -> None:
    """Case 4, for scripts: a client that uses one jar for two environments is logged in to both."""
    envs = [await shop.create("jar-here"), await shop.create("jar-there")]
    agents_of = [shopper(env, seed=seed) for seed, env in enumerate(envs, start=1)]
    async with httpx.AsyncClient(trust_env=False, timeout=60, follow_redirects=True) as client:
        for env, agent in zip(envs, agents_of, strict=True):
            await log_in(client, env.base_url("shop"), agent.customer)
        for env, agent in [*zip(envs, agents_of, strict=True)] * 2:
            profile = await client.get(f"{env.base_url('shop')}/accounts/profile/")
            assert agent.customer in profile.text
    count = "SELECT count(*) FROM django_session"
    assert [books(env).value(count) for env in envs] == [1, 1]


async def log_in(client: httpx.AsyncClient, base_url: str, customer: str) -> None:
    """Log in through the form, as a script does."""
    page = await client.get(f"{base_url}/accounts/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
    assert token is not None
    form = {
        "csrfmiddlewaretoken": token[1],
        "login-username": catalogue.email(customer),
        "login-password": catalogue.PASSWORD,
        "login_submit": "Log In",
    }
    headers = {"Origin": base_url, "Referer": f"{base_url}/accounts/login/"}
    answer = await client.post(f"{base_url}/accounts/login/", data=form, headers=headers)
    assert answer.status_code == 200
    assert answer.url.path != "/accounts/login/"


async def test_the_login_of_the_chosen_generation_is_valid(shop: Engine) -> None:
    """Case 5: after reset, restore and fork the session is that of the generation gone to; case 3: nothing else is."""
    env = await shop.create("login-env")
    origin = await heads_digests(shop, env)
    agent = shopper(env)
    await agent.log_in(agent.customer)
    logged_in = await env.snapshot()
    await agent.follow("Logout")
    await env.restore(logged_in)
    assert await _who(env) == agent.customer
    (child,) = await shop.fork(logged_in)
    assert await _who(child) == agent.customer
    clone = await shop.clone(logged_in, "login-clone")
    await shopper(clone).follow("Logout")
    await clone.reset()
    assert await _who(clone) == agent.customer, "a clone's origin is the moment it was cloned from"
    await env.reset()
    assert await _who(env) == ""
    assert await heads_digests(shop, env) == origin


async def _who(env: Environment) -> str:
    """The name on the account page; empty when the shop asks to log in."""
    seen = await env.act(Goto(f"{SITE}/accounts/profile/"))
    return agents.Shopper(env).customer if agents.Shopper(env).customer in seen.text else ""


async def test_forks_write_one_path_and_do_not_meet(shop: Engine) -> None:
    """Case 8: two forks write one path; the contents differ, and the source's is unchanged."""
    source = await shop.create("files-source")
    image = shopper(source).articles[0].image
    before = (media(source) / image).read_bytes()
    forks = await shop.fork("files-source", n=2)
    for fork in forks:
        (media(fork) / image).write_bytes(before + fork.name.encode())
    served = {env.name: (await fetch(env, f"/media/{image}")).content for env in (source, *forks)}
    assert served == {"files-source": before} | {fork.name: before + fork.name.encode() for fork in forks}
    assert len({hashlib.sha256(content).hexdigest() for content in served.values()}) == 3


async def test_a_child_has_everything_of_one_generation(shop: Engine) -> None:
    """Case 9: the file, the row, the cookie and the half-filled form from before the fork are all there."""
    parent = await shop.create("whole-parent")
    agent = shopper(parent)
    await agents.begin_checkout(agent)
    (media(parent) / "witness.txt").write_text("parent, before the fork")
    (child,) = await shop.fork("whole-parent")
    assert (await fetch(child, "/media/witness.txt")).text == "parent, before the fork"
    verdict = await judged(child, evaluators.in_mid_checkout, agent)
    assert verdict.failed == ()
    session = "SELECT session_key, session_data FROM django_session"
    assert books(child).rows(session) == books(parent).rows(session)
    async with child.page() as page:
        cookies = {cookie["name"] for cookie in await page.context.cookies()}
        assert await page.locator("#id_line1").input_value() == agents.NEW_ADDRESS["line1"]
    assert {"sessionid", "csrftoken"} <= cookies
    (media(parent) / "witness.txt").write_text("parent, after the fork")
    assert (await fetch(child, "/media/witness.txt")).text == "parent, before the fork"


async def test_the_source_acts_at_once_after_a_fork(shop: Engine) -> None:
    """Case 10: the source keeps its page, its ports and its epoch, and answers the very next action."""
    source = await shop.create("atonce-source")
    agent = shopper(source)
    await agents.begin_checkout(agent)
    before = (
        source.capsule.epoch,
        source.capsule.activation,
        source.base_url(),
        source.bindings["browser"].address,
    )
    with anyio.fail_after(60):
        await shop.fork("atonce-source", n=2)
        await agents.finish_to_own_address(agent)
    after = (source.capsule.epoch, source.capsule.activation, source.base_url(), source.bindings["browser"].address)
    assert after == before
    wanted = evaluators.ordered(delivery="Bicycle", quantity=1)
    assert (await judged(source, wanted, agent)).failed == ()


async def test_ready_means_reachable(shop: Engine) -> None:
    """Case 12: when fork, create, reset and restore return, the public door answers with that content, at once."""
    env = await shop.create("ready-env")
    assert (await fetch(env, "/catalogue/")).status_code == 200
    (media(env) / "witness.txt").write_text("second")
    second = await env.snapshot()
    (child,) = await shop.fork("ready-env")
    assert (await fetch(child, "/media/witness.txt")).text == "second"
    await env.reset()
    assert (await fetch(env, "/media/witness.txt")).status_code == 404
    await env.restore(second)
    assert (await fetch(env, "/media/witness.txt")).text == "second"


async def test_late_requests_of_an_abandoned_attempt_are_refused(shop: Engine) -> None:
    """Case 24: a client of attempt N that goes on writing changes nothing in attempt N+1; its refusals are events."""
    env = await shop.create("late-env")
    old = env.capsule
    article = shopper(env).articles[0]
    proxy = f"http://127.0.0.1:{env.bindings['browser'].address['port']}"
    answers: list[int] = []
    cut: list[str] = []  # a request that was sent, and whose answer the closing of the door took away
    wrote, over = anyio.Event(), anyio.Event()

    async def beacon() -> None:
        """Put the article into a basket again and again, as a script of the old page would."""
        async with httpx.AsyncClient(proxy=proxy, base_url=SITE, trust_env=False, timeout=30) as client:
            await client.get(article.path, follow_redirects=True)
            form = {"csrfmiddlewaretoken": client.cookies["csrftoken"], "quantity": "1"}
            while not over.is_set():
                try:
                    response = await client.post(f"/basket/add/{article.number}/", data=form)
                except httpx.TransportError as error:
                    cut.append(repr(error))
                    break  # the door of the abandoned attempt is closed
                answers.append(response.status_code)
                wrote.set()

    async with anyio.create_task_group() as group:
        group.start_soon(beacon)
        await wrote.wait()
        await env.reset()
        over.set()
    assert answers[0] == 302, "while its attempt lived the client could write"
    refused = [event for event in await events(shop, "late-env", RequestRefused) if event.url.endswith("/")]
    journaled = [event.status for event in refused if event.method == "POST"]
    told = [code for code in answers if code >= 400]
    assert journaled[: len(told)] == told, "what a client is told is in the journal first"
    assert len(journaled) - len(told) <= len(cut), "and the journal has no refusal of a request that nobody sent"
    assert {(event.epoch, event.activation) for event in refused} <= {(old.epoch, old.activation)}
    assert journaled, "the attempt ended while its client was writing"
    assert {*journaled} <= {409, 503}
    assert (await judged(env, evaluators.untouched, shopper(env))).failed == ()


async def test_an_agent_is_re_executed_exactly(shop: Engine) -> None:
    """What a page says of an account made anew is what it said the first time, and the shop's rows are its own.

    Who looks only ends at the same state to the byte, but for when its cookies expire; who writes rows, but for when
    those say that they were written.
    """
    env = await shop.create("again-env")
    await agents.register(shopper(env))
    result = await shop.replay("again-env")
    assert (result.verdict, result.exact, result.actions) == ("exact-observed", True, 5), result
    await env.snapshot()
    result = await shop.replay("again-env")
    assert (result.verdict, result.exact, result.masked_states) == ("equivalent", True, ("db",)), result
    assert {cookie.split()[1] for cookie in result.expiries} == {"csrftoken", "sessionid"}
    other = await shop.create("again-other")
    await agents.look_around(shopper(other))
    await other.snapshot()
    result = await shop.replay("again-other")
    assert (result.verdict, len(result.expiries)) == ("exact-state", 2), result
    assert (await judged(env, evaluators.registered, shopper(env))).failed == ()


def test_the_base_is_found_again(tmp_path: Path) -> None:
    """A second state directory uses the cached base: nothing is built twice."""
    first, second = seeded(tmp_path / "one"), seeded(tmp_path / "two")
    assert [p.name for p in (first / "worlds").iterdir()] == [p.name for p in (second / "worlds").iterdir()]
