"""Work under leases: holders with children, what they leave in the background, judges, requests, stragglers."""

from __future__ import annotations

import anyio

from statefork.engine.kernel import EvaluationContext
from statefork.engine.leases import Lease, current_lease
from statefork.engine.ports import AdmissionRequest
from statefork.journal.values import Identity
from statefork.simulation.workload import Agent, Work


async def write_raw(agent: Agent, lease: Lease, by: str = "lease") -> None:
    """What a raw client writes under a lease, into a store of the generation that the lease is on."""
    scene = agent.scene
    await anyio.sleep(scene.seconds(1))
    if scene.process.dead:
        return
    store = agent.random.choice(scene.plan.stores)
    branch = scene.world.newest[store, lease.identity]
    if branch in scene.world.branches:
        scene.world.write(branch, by, str(scene.witness(lease.env, lease.epoch, by)))


async def use(agent: Agent, lease: Lease, what: str) -> None:
    """Hold a lease for a while, writing or not; the generation stays the same meanwhile."""
    with agent.truth.holding(lease, what) as holder:
        for _ in range(agent.random.randint(1, 2)):
            if agent.random.random() < 0.6:
                await write_raw(agent, lease)
            else:
                await anyio.sleep(agent.scene.seconds(2))
            agent.truth.still(lease, holder)


async def lease(agent: Agent) -> None:
    """A lease by itself."""
    if env := agent.env():
        expect = agent.random.choice([None, None, agent.epoch(env), 1])

        async def work() -> None:
            async with agent.kernel.lease(env, "somebody", expect=expect) as lease:
                wanted = expect in (None, lease.epoch)
                agent.truth.require(wanted, "I7", f"epoch {expect} was asked for, and {lease.epoch} given")
                await use(agent, lease, "somebody")

        await agent.scene.tried(f"lease of {env}", work)
        agent.look(env)


async def nested(agent: Agent) -> None:
    """A lease whose holder starts others, which take leases of their own; and which acts."""
    if not (env := agent.env()):
        return

    async def child(number: int) -> None:
        async with agent.kernel.lease(env, f"child {number}") as lease:
            agent.truth.require(lease.parent is not None, "I1", f"child {number} got a root lease of {env}")
            await use(agent, lease, f"child {number}")

    async def work() -> None:
        async with agent.kernel.lease(env, "parent") as lease:
            with agent.truth.holding(lease, "parent"):
                async with anyio.create_task_group() as children:
                    for number in range(agent.random.randint(1, 3)):
                        children.start_soon(agent.scene.tried, f"child {number} of {env}", lambda n=number: child(n))
                if agent.random.random() < 0.4:
                    await agent.put(env, "db", "nested")

    await agent.scene.tried(f"nested leases of {env}", work)
    agent.look(env)


async def background(agent: Agent) -> None:
    """Something that a holder began and did not wait for: it is drained with the holder's lease."""
    if not (env := agent.env()) or agent.scene.tasks is None:
        return
    tasks = agent.scene.tasks
    begun = anyio.Event()

    async def child() -> None:
        try:
            async with agent.kernel.lease(env, "background") as lease:
                begun.set()
                await use(agent, lease, "background")
        finally:
            begun.set()

    async def work() -> None:
        async with agent.kernel.lease(env, "beginner") as lease:
            with agent.truth.holding(lease, "beginner"):
                tasks.start_soon(agent.scene.tried, f"background of {env}", child)
                await begun.wait()

    await agent.scene.tried(f"background lease of {env}", work)


async def straggle(agent: Agent) -> None:
    """One who can't be cancelled, as a thread can't."""
    if not (env := agent.env()):
        return

    async def work() -> None:
        async with agent.kernel.lease(env, "straggler") as lease:
            with agent.truth.holding(lease, "straggler", joinable=False):
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(agent.scene.seconds(12))
                    await write_raw(agent, lease, "straggler")

    await agent.scene.tried(f"straggler in {env}", work)
    agent.look(env)


async def pin(agent: Agent) -> None:
    """The environment does not give its slot away for a while."""
    if env := agent.env():
        pins = agent.scene.pins

        async def work() -> None:
            await agent.kernel.activate(env)
            with agent.kernel.pinned(env):
                pins[env] = pins.get(env, 0) + 1
                try:
                    await anyio.sleep(agent.scene.seconds(8))
                finally:
                    pins[env] -= 1

        await agent.scene.tried(f"pin of {env}", work)


async def judge(agent: Agent) -> None:
    """What an evaluator reads is the content of one moment after the other, all of one generation."""
    if not (env := agent.env()):
        return

    async def check(context: EvaluationContext) -> float:
        lease = current_lease()
        assert lease is not None
        with agent.truth.holding(lease, "judge") as holder:
            for _ in range(2):
                for store in agent.scene.plan.stores:
                    namespace = str(context.bindings[store].address["namespace"])
                    found = agent.scene.world.branches[namespace].content
                    wanted = agent.truth.models[env].content[store]
                    agent.truth.require(found == wanted, "state", f"the judge of {env} reads {found}, not {wanted}")
                await anyio.sleep(agent.scene.seconds(1))
                agent.truth.still(lease, holder)
        return 1.0

    await agent.scene.tried(f"judge of {env}", lambda: agent.kernel.evaluate(env, "same", check))


async def request(agent: Agent) -> None:
    """A request through the door of the environment's present activation."""
    if env := agent.env():
        identity = agent.ticket(env)
        if identity is not None:
            await _admitted(agent, env, identity, "request")


async def stale(agent: Agent) -> None:
    """A request with a ticket of some time ago: served only where it is still the present one."""
    env = agent.env()
    tickets = [one for one in agent.scene.tickets if one.env == env] or agent.scene.tickets
    if tickets:
        identity = agent.random.choice(tickets)
        if identity.env not in agent.scene.private:
            await _admitted(agent, identity.env, identity, "request")


async def site(agent: Agent) -> None:
    """A request at the environment's private base URL: what is parked is bound for it."""
    if env := agent.env():
        await _admitted(agent, env, None, "request")


async def message(agent: Agent) -> None:
    """A message of a connection that lives on: held while the environment is frozen."""
    if env := agent.env():
        identity = agent.ticket(env)
        if identity is not None:
            await _admitted(agent, env, identity, "websocket-message")


async def _admitted(agent: Agent, env: str, identity: Identity | None, kind: str) -> None:
    method = agent.random.choice(["GET", "POST"])
    asked = AdmissionRequest(identity=identity, env=env, method=method, url=f"http://{env}.example/", kind=kind)

    async def work() -> None:
        async with agent.kernel.admit(asked) as lease:
            assert isinstance(lease, Lease)
            if identity is not None:
                told = f"a ticket of {identity} was let in by {lease.identity}"
                agent.truth.require(identity == lease.identity, "I7", told)
            await use(agent, lease, f"{method} of {env}")
            if method == "POST" and not agent.scene.process.dead:
                agent.kernel.record_input(lease, method=method, url=asked.url, headers={}, body=b"", status=200)

    await agent.scene.tried(f"{kind} of {identity or env}", work)
    agent.look(env)


KINDS: dict[str, Work] = {
    "lease": lease,
    "nested": nested,
    "background": background,
    "straggle": straggle,
    "pin": pin,
    "judge": judge,
    "request": request,
    "stale": stale,
    "site": site,
    "message": message,
}
