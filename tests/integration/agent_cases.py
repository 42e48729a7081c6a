"""What is complained of in such systems, told through an interface of agents' code, on one engine of the shop.

A program, since an interface may need an environment of its own: ``agent_cases.py FACE STATE`` prints, for each case,
how it failed, or nothing.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from statefork import sync
from statefork.adapters.resources.browser.options import routes_of
from statefork.engine.errors import DrainTimeout
from statefork.engine.ports import Needs
from statefork.engine.settings import DrainPolicy
from statefork.journal.events import ActionEnded, Event, RequestRefused
from statefork.journal.values import Json
from tests.integration.agent_faces import ADD, FACES, SHOP, Face, pieces

Made = Callable[..., Any]
QUICK = DrainPolicy(deadline_s=0.05, then="abort")


class Stage:
    """The engine, the interface, and what is made through it."""

    def __init__(self, engine: sync.Engine, face: Face) -> None:
        self.engine = engine
        self.face = face

    @contextmanager
    def env(self, **arguments: Any) -> Iterator[Any]:
        """An environment that has been reset."""
        env = self.face.make(self.engine, **arguments)
        try:
            env.reset(seed=1)
            yield env
        finally:
            env.close()

    def basket(self, env: Any) -> float:
        """What lies in the basket, seen beside the interface."""
        return env.environment.evaluate(pieces)


TASKS = ((0, "/"), (1, "/basket/"), (1, "/catalogue/"))
"""How many pieces to put into the basket, and where to look then."""


def answer(stage: Stage, env: Any, task: int) -> tuple[float, str]:
    """A task's answer: the reward, and the address of the page."""
    times, path = TASKS[task]
    env.reset(seed=task)
    for _ in range(times):
        stage.face.goto(env, "/catalogue/")
        stage.face.add(env)
    obs, reward, *_ = stage.face.goto(env, path)
    return reward, obs["url"]


def case_2_tasks_in_any_order_and_in_parallel(stage: Stage) -> None:
    """The same answers one after the other, and in parallel on environments that had another task before."""
    envs = [stage.face.make(stage.engine) for _ in TASKS]
    try:
        in_order = [answer(stage, envs[0], task) for task in range(len(TASKS))]
        with ThreadPoolExecutor(len(TASKS)) as pool:
            asked = [pool.submit(answer, stage, envs[task - 1], task) for task in range(len(TASKS))]
        assert [one.result() for one in asked] == in_order
    finally:
        for env in envs:
            env.close()
    assert [reward for reward, _ in in_order] == [0.0, 1.0, 1.0]


def case_7_a_hung_action(stage: Stage) -> None:
    """Its deadline ends it, siblings go on meanwhile, and it is recorded as unknown."""
    with stage.env(seconds_max=4.0) as env, stage.env() as sibling:
        stage.face.add(env)
        stage.face.goto(sibling, "/catalogue/")
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(stage.face.hang, env)
            stage.face.add(sibling)
            assert stage.basket(sibling) == 1.0
            obs, _, terminated, _, info = hanging.result()
        assert info["error"]["code"] == stage.face.hung, info
        assert obs["last_action_error"]
        assert not terminated
        name = env.environment.name
        ended = [one.outcome for one in events(stage.engine) if isinstance(one, ActionEnded) and one.env == name]
        assert ended[-1] == "unknown"
        env.reset()
        assert stage.basket(env) == 0.0
        stage.face.goto(env, "/catalogue/")


def events(engine: sync.Engine) -> list[Event]:
    """All that the journal has."""

    async def read() -> list[Event]:
        journal = engine._engine.journal
        await journal.flush()
        return [recorded.event async for recorded in journal.read()]

    return engine._calls.call(read)


def case_12_a_fork_is_reachable(stage: Stage) -> None:
    """When ``fork`` returns, the children answer at their public address, and act."""
    with stage.env() as env:
        stage.face.goto(env, "/catalogue/")
        stage.face.add(env)
        children = env.fork(2)
        try:
            for child in children:
                answered = httpx.get(child.environment.base_url(), follow_redirects=True, trust_env=False, timeout=30)
                assert answered.status_code == 200
                _, reward, *_ = stage.face.goto(child, "/basket/")
                assert reward == 1.0
            stage.face.goto(children[0], "/catalogue/")
            stage.face.add(children[0])
            assert [stage.basket(one) for one in (env, *children)] == [1.0, 2.0, 1.0]
        finally:
            for child in children:
                child.close()


def case_21_truncate_at_step_k_and_go_on(stage: Stage) -> None:
    """One call: back to after step k, another action, and on."""
    with stage.env() as env:
        stage.face.goto(env, "/catalogue/")
        *_, info = stage.face.add(env)
        at = info["at"]
        stage.face.goto(env, "/catalogue/")
        stage.face.add(env)
        assert stage.basket(env) == 2.0
        obs, info = env.reset(options={"at": at})
        assert stage.basket(env) == 1.0
        assert ADD in stage.face.text(obs)
        assert obs["last_action_error"] == ""
        obs, reward, *_ = stage.face.goto(env, "/basket/")
        assert reward == 1.0
        assert obs["url"].endswith("/basket/")


def case_24_what_comes_late(stage: Stage) -> None:
    """What attempt N sends after the reset is refused, as the journal says, and attempt N+1 has nothing of it."""
    with stage.env() as env:
        stage.face.goto(env, "/catalogue/")
        with env.environment.page() as page:
            form = page.evaluate(
                "() => { const form = [...document.forms].find(one => one.action.includes('/basket/add/'));"
                " return [form.action, new URLSearchParams(new FormData(form)).toString(), document.cookie] }"
            )
            cookies = {one["name"]: one["value"] for one in page.context.cookies()}
        name, bindings = env.environment.name, env.environment.bindings
        door = opened(stage.engine, bindings)  # like the one that its browser has, which is closed with that
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Referer": f"{SHOP}/"}
        proxy = f"http://127.0.0.1:{door.port}"
        with httpx.Client(proxy=proxy, cookies=cookies, trust_env=False, timeout=30) as beacon:
            assert beacon.post(form[0], content=form[1], headers=headers).status_code == 302
            assert stage.basket(env) == 1.0
            env.reset()
            late = beacon.post(form[0], content=form[1], headers=headers)
        assert (late.status_code, late.json()["code"]) == (409, "stale_generation")
        assert stage.basket(env) == 0.0
        refused = [one for one in events(stage.engine) if isinstance(one, RequestRefused) and one.env == name]
        assert [(one.url, one.code) for one in refused if one.method == "POST"] == [(form[0], "stale_generation")]
        stage.engine._calls.call(door.close)


def opened(engine: sync.Engine, bindings: Any) -> Any:
    """A proxy door of an environment."""
    gateway = engine._engine.kernel.resources["browser"]._services.gateway  # type: ignore[attr-defined]  # a browser's
    routes = routes_of(Needs(bindings=bindings))
    return engine._calls.call(lambda: gateway.open_proxy(bindings["shop"].identity, routes))


def case_bad_input(stage: Stage) -> None:
    """Each is told in the interface's own form, and nothing is lost by it."""
    with stage.env() as env:
        stage.face.goto(env, "/catalogue/")
        stage.face.add(env)
        for action in stage.face.bad():
            obs, _, terminated, truncated, info = env.step(action)
            assert obs["last_action_error"], repr(action)[:80]
            assert not terminated, repr(action)[:80]
            assert not truncated, (repr(action)[:80], info)
            assert stage.basket(env) == 1.0
        obs, reward, *_ = stage.face.goto(env, "/basket/")
        assert (reward, obs["last_action_error"]) == (1.0, "")


def case_a_verdict_is_of_the_generation_that_was_acted_on(stage: Stage) -> None:
    """While a task judges, nobody can publish another generation."""
    judging, told = threading.Event(), []
    with stage.env() as env:
        name = env.environment.name

        def meddle() -> None:
            judging.wait(30)
            try:
                told.append(stage.engine.environment(name).reset(drain=QUICK))
            except DrainTimeout as error:
                told.append(error)

        meddler = threading.Thread(target=meddle)
        meddler.start()
        inner = stage.engine.environment(name).ref

        def check(seen: Any) -> tuple[float, Json]:
            judging.set()
            meddler.join()
            return float(seen.generation == inner.generation), None

        assert env.environment.evaluate(check) == 1.0
    assert isinstance(told[0], DrainTimeout), told


def cases_in(names: dict[str, Any]) -> dict[str, Callable[[Stage], None]]:
    """The cases of a module."""
    return {name.removeprefix("case_"): case for name, case in names.items() if name.startswith("case_")}


CASES = cases_in(dict(globals()))


def main(face: str, state: str) -> None:
    """Run all, and print how each failed; nothing where it did not."""
    told: dict[str, str] = {}
    cases = dict(CASES)
    if face == "browsergym":
        from tests.integration import browsergym_cases

        cases |= cases_in(vars(browsergym_cases))
    with sync.open_engine("shop", state=Path(state)) as engine:
        stage = Stage(engine, FACES[face]())
        for name, case in cases.items():
            began = time.monotonic()
            try:
                case(stage)
                left = [env.name for env in engine.environments()]
                assert not left, f"left: {left}"
            except BaseException:  # noqa: BLE001 -- it is told, and the next case runs
                told[name] = traceback.format_exc()[-6000:]
            else:
                told[name] = ""
            print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    print(json.dumps(told))


if __name__ == "__main__":
    from tests.integration.agent_cases import main  # the module that others import, not a second one

    main(*sys.argv[1:])
