"""Agents: each does one thing after another, on the environments that there are, as the plan weighs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from statefork.engine.capsule import Phase
from statefork.engine.errors import ResourceFailed
from statefork.engine.kernel import ActResult, Kernel
from statefork.journal.errors import StateforkError
from statefork.journal.values import Identity, Json
from statefork.simulation.lying import STUBBORN
from statefork.simulation.scene import Scene

Work = Callable[["Agent"], Awaitable[None]]


class Agent:
    """One who works. ``env`` is the environment that it likes best at the moment."""

    def __init__(self, scene: Scene, kernel: Kernel, kinds: dict[str, Work]) -> None:
        self.scene = scene
        self.kernel = kernel
        self.random = scene.random
        self.truth = scene.truth
        self._env = ""
        self._kinds = [kinds[kind] for kind in scene.plan.weights]
        self._weights = list(scene.plan.weights.values())

    async def run(self) -> None:
        """All steps."""
        for _ in range(self.scene.plan.steps):
            await anyio.sleep(self.scene.seconds(0.5))
            if self.scene.process.dead:
                return
            (work,) = self.random.choices(self._kinds, self._weights)
            await work(self)

    def usable(self) -> list[str]:
        """The environments that have a generation and have not ended, but those that somebody has for himself."""
        return [
            env
            for env, capsule in self.kernel.environments.items()
            if capsule.generation and capsule.phase is not Phase.RETIRED and env not in self.scene.private
        ]

    def room(self) -> int:
        """How many more environments there may be."""
        return self.scene.plan.environments - len(self.usable())

    def env(self) -> str:
        """One to work on; empty where there is none."""
        usable = self.usable()
        if self.scene.hot in usable and self.random.random() < 0.5:
            return self.scene.hot
        if self._env not in usable or self.random.random() < 0.4:
            self._env = self.random.choice(usable) if usable else ""
        return self._env

    def ticket(self, env: str) -> Identity | None:
        """That of the environment's present activation; kept, to be tried again later. None where it is parked."""
        model = self.truth.models.get(env)
        if model is None or not self.kernel.branches(env):
            return None
        identity = next(iter(self.kernel.bindings(env).values())).identity
        if identity not in self.scene.tickets:
            self.scene.tickets.append(identity)
        return identity

    def epoch(self, env: str) -> int:
        """The epoch that a writer would name now."""
        model = self.truth.models.get(env)
        return model.epoch if model is not None else 0

    def look(self, *envs: str) -> None:
        """See whether they are as they must be."""
        if not self.scene.process.dead:
            for env in envs:
                self.truth.look(self.kernel, env)

    async def act(
        self,
        env: str,
        action: dict[str, Json],
        *,
        timeout_s: float | None = None,
        excused: tuple[type[StateforkError], ...] = (),
    ) -> ActResult | None:
        """One action; None where it failed or was cancelled."""
        told = " ".join(str(value) for value in action.values())
        result: Any = await self.scene.tried(
            f"{env} acts: {told}", lambda: self.kernel.act(env, action, timeout_s=timeout_s), excused=excused
        )
        return result if isinstance(result, ActResult) else None

    async def put(self, env: str, store: str, key: str, *, timeout_s: float | None = None) -> None:
        """Write a witness by an action; what is said to be written must be so."""
        self.ticket(env)
        witness = self.scene.witness(env, self.epoch(env), "act")
        action: dict[str, Json] = {"type": "put", "in": store, "key": key, "value": str(witness)}
        result = await self.act(env, action, timeout_s=timeout_s)
        if result is not None and result.outcome == "ok":
            self.truth.require(witness.number in self.truth.written, "outcome", f"{witness} was not written")
        self.look(env)


async def write(agent: Agent) -> None:
    """One value into one store."""
    if env := agent.env() or await founded(agent):
        timeout_s = agent.random.choice([None, None, None, 0.01, 1.0])
        store = agent.random.choice(agent.scene.plan.stores)
        await agent.put(env, store, agent.random.choice(["a", "b", "c"]), timeout_s=timeout_s)


async def pair(agent: Agent) -> None:
    """One value into every store, one after the other."""
    if env := agent.env() or await founded(agent):
        for store in agent.scene.plan.stores:
            await agent.put(env, store, "pair")


async def founded(agent: Agent) -> str:
    """A new environment; empty where that failed."""
    name = agent.scene.name()
    activate = agent.random.random() < 0.7
    done = await agent.scene.tried(f"create {name}", lambda: agent.kernel.create(name, activate=activate))
    return name if done is not None else ""


async def fail(agent: Agent) -> None:
    """The world says no."""
    if env := agent.env():
        result = await agent.act(env, {"type": "fail", "in": "db", "key": "no"})
        agent.truth.require(result is None or result.outcome != "ok", "outcome", "what failed is told as done")


async def hang(agent: Agent) -> None:
    """Nothing will ever come: the deadline ends it."""
    if env := agent.env():
        agent.scene.numbers += 1
        key, timeout_s = f"never-{agent.scene.numbers}", agent.random.choice([0.1, 1.0])
        result = await agent.act(env, {"type": "wait", "in": "db", "key": key}, timeout_s=timeout_s)
        agent.truth.require(result is None or result.outcome == "unknown", "outcome", f"{key} never came: {result}")
        took_s = agent.scene.took_s.get(key, 0.0)
        late = took_s > timeout_s + 1e-6 and not agent.scene.troubled
        agent.truth.require(not late, "deadline", f"{key} was given {timeout_s} s and took {took_s}")


async def stubborn(agent: Agent) -> None:
    """An action that can't be cancelled, and writes all the same when its time has come."""
    if env := agent.env():
        witness = agent.scene.witness(env, agent.epoch(env), "straggler")
        action: dict[str, Json] = {"type": "put", "in": "db", "key": STUBBORN, "value": str(witness)}
        timeout_s = agent.random.choice([None, 1.0])
        await agent.act(env, action, timeout_s=timeout_s, excused=(ResourceFailed,))  # its branch may be gone by then
        agent.look(env)


async def opaque(agent: Agent) -> None:
    """The native object for a while: what is done with it is not recorded."""
    if not (env := agent.env()):
        return
    scene = agent.scene

    async def work() -> None:
        async with agent.kernel.raw(env) as native:
            await anyio.sleep(scene.seconds(0.5))
            if not scene.process.dead:
                found = [branch for branch, one in scene.world.branches.items() if one.content is native]
                native["opaque"] = str(scene.witness(env, agent.epoch(env), "raw"))
                agent.truth.on_write(found[0], "opaque", native["opaque"])
            await anyio.sleep(scene.seconds(0.5))

    await scene.tried(f"opaque in {env}", work)
    agent.look(env)


async def leave(agent: Agent) -> None:
    """Something goes on in the background when the action has ended."""
    if not (env := agent.env()):
        return
    scene = agent.scene
    scene.numbers += 1
    job = f"job-{scene.numbers}"
    if agent.random.random() < 0.2:
        scene.world.unjoinable.add(job)
    await agent.act(env, {"type": "leave", "in": "db", "key": job})
    for branch, namespace in scene.world.branches.items():
        if job in namespace.background and scene.tasks is not None:
            scene.tasks.start_soon(_work_on, scene, branch, job)


async def _work_on(scene: Scene, branch: str, job: str) -> None:
    for _ in range(scene.random.randint(1, 4)):
        await anyio.sleep(scene.seconds(2))
        namespace = scene.world.branches.get(branch)
        identity = scene.world.identities.get(branch)
        if namespace is None or identity is None or job not in namespace.background or scene.process.dead:
            return
        scene.world.write(branch, "job", str(scene.witness(identity.env, identity.epoch, "job")))
    scene.world.finish(job)


async def observe(agent: Agent) -> None:
    """Look without acting."""
    if env := agent.env():
        await agent.scene.tried(f"observe {env}", lambda: agent.kernel.observe(env))


KINDS: dict[str, Work] = {
    "write": write,
    "pair": pair,
    "fail": fail,
    "hang": hang,
    "stubborn": stubborn,
    "opaque": opaque,
    "leave": leave,
    "observe": observe,
}
