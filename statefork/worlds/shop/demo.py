"""The demo: many environments of the shop on one server and one browser, forked, reset, restored, replayed, audited.

This module is the scenario alone; :mod:`statefork.worlds.shop.show` opens the engine for it and says what was found.
What goes wrong in one environment is noted and does not stop the others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.interfaces.views import Cost, Seen
from statefork.adapters.resources.browser.actions import Action
from statefork.worlds.shop import agents, evaluators
from statefork.worlds.shop.agents import Agent, Shopper
from statefork.worlds.shop.evaluators import Evaluate, Judge
from statefork.worlds.shop.report import Checked, Replayed

ENVIRONMENTS_MIN, ENVIRONMENTS_MAX = 4, 64
WARM_READERS, WARM_ROUNDS = 6, 3

Tell = Callable[[str, str], None]
"""Called with an environment's name ("" for the engine) and a sentence about what it has just done."""


class Role(NamedTuple):
    """What an agent does in an environment, and how that is judged."""

    task: str
    agent: Agent
    judge: Judge


ROLES = (
    Role("stops in mid-checkout", agents.begin_checkout, evaluators.in_mid_checkout),
    Role(
        "orders as a guest",
        agents.order_as_guest,
        evaluators.ordered(delivery="Post", quantity=1, town=agents.NEW_ADDRESS["line4"], guest=True),
    ),
    Role("fills a basket", agents.fill_basket, evaluators.basket_filled),
    Role("reviews an article", agents.write_review, evaluators.reviewed),
    Role("searches and reads", agents.look_around, evaluators.looked_around),
    Role("registers", agents.register, evaluators.registered),
    Role("changes a name", agents.edit_profile, evaluators.renamed),
    Role("reviews the same article", agents.write_review, evaluators.reviewed),
)
FORKED, COPIED, RESET, RESTORED = range(4)  # what happens afterwards to the first four

ENDINGS = {
    "new-address": Role(
        "orders to a new address",
        agents.finish_to_new_address,
        evaluators.ordered(delivery="Post", quantity=1, town=agents.NEW_ADDRESS["line4"]),
    ),
    "bicycle": Role(
        "orders to the old one, by bicycle",
        agents.finish_to_own_address,
        evaluators.ordered(delivery="Bicycle", quantity=1),
    ),
    "three": Role(
        "goes back and orders three",
        agents.finish_with_three,
        evaluators.ordered(delivery="Courier", quantity=3),
    ),
    "gives-up": Role("empties the basket and leaves", agents.abandon, evaluators.abandoned),
}
REPLAYED = "bicycle"
FORK_MANY = f"fork, {len(ENDINGS)} at once"


class Camera:
    """An environment's face that keeps time and a picture of every step."""

    def __init__(self, env: Environment, directory: Path) -> None:
        self.env = env
        self.directory = directory
        self.times_ms: list[float] = []
        self.pictures = 0

    async def act(self, action: Action) -> Seen:
        """Carry out the action and write what was seen to ``<environment>/<step>-<action>.png``."""
        began = time.perf_counter()
        seen = await self.env.act(action)
        self.times_ms.append((time.perf_counter() - began) * 1000)
        await anyio.to_thread.run_sync(self._keep, seen, action)
        return seen

    def _keep(self, seen: Seen, action: Action) -> None:
        what = str(action.to_json()["type"])
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / f"{seen.number:02d}-{what}.png").write_bytes(seen.png)
        self.pictures += 1


class Cast(NamedTuple):
    """An environment with its agent."""

    env: Environment
    role: Role
    camera: Camera
    shopper: Shopper
    origin: str
    inherited: int


class Demo:
    """The scenario over an open engine. Every public coroutine is one act of it."""

    def __init__(self, engine: Engine, *, environments: int, run: int, tell: Tell) -> None:
        self.engine = engine
        self.wanted = environments
        self.prefix = "shop" if run == 1 else f"run{run}"
        self.pictures = engine.state / "screenshots" / f"run-{run}"
        self.tell = tell
        self.cast: dict[str, Cast] = {}
        self.checked: dict[str, list[Checked]] = defaultdict(list)
        self.errors: dict[str, list[str]] = defaultdict(list)
        self.ready_ms: dict[str, list[float]] = defaultdict(list)
        self.costs: dict[str, Cost] = {}
        self.replayed: Replayed | None = None

    @property
    def expected(self) -> int:
        """How many environments take part when all goes well."""
        return self.wanted + len(ENDINGS)

    async def play(self) -> None:
        """All acts, in their order."""
        await self.create()
        await self.everybody(self._work)
        await self.fork()
        await self.keep()
        await self.copy()
        await self.reset()
        await self.restore()
        await self.replay()
        async with self.step("", "memory at the end", quiet=True):
            self.costs["end"] = await self.engine.cost()

    # --- acts ---------------------------------------------------------------------------------------------------

    async def create(self) -> None:
        """One environment after the other, so that the times are those of a quiet machine."""
        for number in range(1, self.wanted + 1):
            name = f"{self.prefix}-{number}"
            role = ROLES[(number - 1) % len(ROLES)]
            async with self.step(name, "created"):
                async with self.timed("create"):
                    env = await self.engine.create(name)
                # Those who write a review choose the same article: a key that is unique in a shop, in two of them.
                seed = 0 if role.agent is agents.write_review else number
                self.enter(env, role, origin="base", seed=seed)
                if number == 1:
                    await self.warm(env)
            if len(self.cast) in (1, self.wanted):
                async with self.step("", f"memory with {len(self.cast)}", quiet=True):
                    self.costs["one" if len(self.cast) == 1 else "all"] = await self.engine.cost()

    async def warm(self, env: Environment) -> None:
        """Have every thread of the server render a few pages, so that growing warm is not counted as an environment."""

        async def read() -> None:
            async with httpx.AsyncClient(base_url=env.base_url(), trust_env=False, timeout=60) as client:
                for _ in range(WARM_ROUNDS):
                    (await client.get("/catalogue/")).raise_for_status()

        async with anyio.create_task_group() as group:
            for _ in range(WARM_READERS):
                group.start_soon(read)

    async def fork(self) -> None:
        """Four siblings from the middle of a checkout, which end differently; the parent goes on unharmed."""
        parent = self.member(FORKED)
        if parent is None:
            return
        async with self.step(parent.env.name, f"forked into {len(ENDINGS)} siblings in mid-checkout"):
            names = [f"{parent.env.name}-{ending}" for ending in ENDINGS]
            async with self.timed(FORK_MANY):
                children = await self.engine.fork(parent.env.name, n=len(names), names=names)
            for child, role in zip(children, ENDINGS.values(), strict=True):
                self.enter(child, role, origin=str(child.capsule.parent), seed=parent.shopper.seed)
            async with anyio.create_task_group() as group:
                for child in children:
                    group.start_soon(self._end, self.cast[child.name])
            await self.judge(parent, evaluators.in_mid_checkout, "untouched by its siblings")

    async def keep(self) -> None:
        """Seal what the others have done, one after the other, for the time that it takes on a quiet machine."""
        for index in (COPIED, *range(RESTORED + 1, self.wanted)):
            if (member := self.member(index)) is not None:
                async with self.step(member.env.name, "snapshot taken", quiet=True), self.timed("snapshot"):
                    await member.env.snapshot()

    async def copy(self) -> None:
        """One more fork, of a live environment and alone, for its time: the copy must be judged like the original."""
        member = self.member(COPIED)
        if member is None:
            return
        async with self.step(member.env.name, "forked once more, alone; the copy is judged the same and retired"):
            async with self.timed("fork"):
                (child,) = await self.engine.fork(member.env.name)
            await self.judge(member, member.role.judge, "its copy is the same", of=child)
            await child.retire()

    async def reset(self) -> None:
        """Back to the origin: as if nothing had been done."""
        member = self.member(RESET)
        if member is None:
            return
        async with self.step(member.env.name, "reset to its origin"):
            async with self.timed("reset"):
                await member.env.reset()
            await self.judge(member, evaluators.untouched, "as at the beginning")

    async def restore(self) -> None:
        """Back to a generation of its own: after the log-in, before the review."""
        member = self.member(RESTORED)
        if member is None:
            return
        async with self.step(member.env.name, "restored to generation 2"):
            async with self.timed("restore"):
                await member.env.restore(2)
            await self.judge(member, evaluators.not_reviewed, "logged in, not reviewed yet")

    async def replay(self) -> None:
        """Re-execute one sibling from its journal, in a fresh environment, and compare all that was seen."""
        name = f"{self.prefix}-{FORKED + 1}-{REPLAYED}"
        if name not in self.cast:
            return
        async with self.step(name, "re-executed from its journal"):
            began = time.perf_counter()
            result = await self.engine.replay(name)
            self.replayed = Replayed(
                env=name,
                actions=result.actions,
                exact=result.exact,
                verdict=result.verdict,
                seconds=round(time.perf_counter() - began, 2),
            )
            if result.divergence is not None:
                raise AssertionError(f"{result.divergence.step}: {result.divergence.what}")
            assert result.exact, f"{result.verdict}: {', '.join(result.unverified)}"

    # --- one environment ----------------------------------------------------------------------------------------

    async def _work(self, member: Cast) -> None:
        async with self.step(member.env.name, member.role.task):
            if member.role is ROLES[RESTORED]:  # a point to come back to, between log-in and review
                await member.shopper.log_in(member.shopper.customer)
                await member.env.snapshot()
                await agents.review_when_logged_in(member.shopper)
            else:
                await member.role.agent(member.shopper)
            await self.judge(member, member.role.judge, member.role.task)

    async def _end(self, member: Cast) -> None:
        async with self.step(member.env.name, member.role.task):
            await self.judge(member, evaluators.in_mid_checkout, "continues in mid-checkout")
            await member.role.agent(member.shopper)
            await self.judge(member, member.role.judge, member.role.task)

    async def judge(self, member: Cast, judge: Judge, what: str, *, of: Environment | None = None) -> None:
        """Evaluate (the member, or a copy of it), under one generation, and keep what was found."""
        check = Evaluate(judge, member.shopper)
        await (of or member.env).evaluate(check, name=what)
        assert check.score is not None
        self.checked[member.env.name].append(
            Checked(what=what, generation=check.generation, score=check.score.value, facts=check.score.detail())
        )

    # --- bookkeeping --------------------------------------------------------------------------------------------

    def enter(self, env: Environment, role: Role, *, origin: str, seed: int) -> None:
        """Give an environment its agent."""
        camera = Camera(env, self.pictures / env.name)
        self.cast[env.name] = Cast(env, role, camera, Shopper(camera, seed=seed), origin, env.capsule.actions)

    def member(self, index: int) -> Cast | None:
        """The environment that has this place in the cast; None where it could not be made."""
        return self.cast.get(f"{self.prefix}-{index + 1}")

    def operation(self, env: str, op: str) -> str:
        """Under which name ``ready_ms`` has an operation that the journal tells of."""
        return FORK_MANY if op == "fork" and env in self.cast else op

    async def everybody(self, work: Callable[[Cast], Any]) -> None:
        """All environments at once; each on its own."""
        async with anyio.create_task_group() as group:
            for member in list(self.cast.values()):
                group.start_soon(work, member)

    @asynccontextmanager
    async def step(self, name: str, what: str, *, quiet: bool = False) -> AsyncIterator[None]:
        """Run one step; an error in it is noted under the environment's name, and the demo goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- whatever it is, it must not hide how the others fared
            problem = f"{what}: {_sentence(error)}"
            self.errors[name].append(problem)
            self.tell(name, f"FAILED: {problem}")
        else:
            if not quiet:
                self.tell(name, what)

    @asynccontextmanager
    async def timed(self, op: str) -> AsyncIterator[None]:
        """Measure an operation until it is ready, as its caller sees it."""
        began = time.perf_counter()
        yield
        self.ready_ms[op].append((time.perf_counter() - began) * 1000)


def _sentence(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_sentence(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}".splitlines()[0]
