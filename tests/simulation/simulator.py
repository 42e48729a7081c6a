"""A deterministic simulation of the real engine: one seed gives one run, bit for bit.

Drivers act on their environments and change them; disturbers lease, judge, request, snapshot, fork and collect; calls
fail, stall and report failure after success; appends fail or lose their reply; callers are cancelled; and again and
again the process dies and its state is opened anew. All on trio's mock clock and with a seeded scheduler.

The truth is kept outside the engine: for each environment the contents that its stores may have now (one, except while
a write is under way), and for each published generation the content that it has. Stores are read as raw clients read
them, so that a mixture, a lost write, a torn cut or a leak from an abandoned future is seen in the state itself.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from copy import deepcopy

import anyio
import trio
import trio.testing

from statefork.adapters.resources.memory import Call, MemoryWorld
from statefork.engine.capsule import Phase
from statefork.engine.errors import DrainTimeout, ResourceFailed, TransitionAborted
from statefork.engine.kernel import EvaluationContext, Kernel, Settings
from statefork.engine.settings import DrainPolicy
from statefork.journal.errors import JournalError, JournalUnavailable, StateforkError
from statefork.journal.memory import MemoryDisk
from statefork.journal.values import Json, Moment
from tests.contract.engine_kit import House, request

Content = dict[str, dict[str, Json]]  # store -> what is in it
STORES = ("db", "media")
ENVIRONMENTS_MAX = 8
LIVES = 3
STEPS = 12
SETTINGS = Settings(
    drain=DrainPolicy(deadline_s=5, then="revoke", join_s=5),
    drain_at_end=DrainPolicy(deadline_s=1, then="revoke", join_s=1),
)


class SimulatedClock:
    """The engine's clock on trio's."""

    def now(self) -> float:
        return 1_700_000_000 + trio.current_time()

    def monotonic(self) -> float:
        return trio.current_time()


class Truth:
    """What must be in the world, as far as it is known outside the engine."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.published: dict[str, Content] = {}  # moment -> content
        self.states: dict[str, list[Content]] = {}  # environment -> what its stores may hold now
        self.promised: list[Moment] = []

    def absorb(self, kernel: Kernel, env: str) -> bool:
        """Note the generations that are new, each checked; True when one of them replaced the content."""
        replaced = False
        for generation in list(kernel.environments[env].generations.values()):
            name = str(generation.moment)
            if name in self.published:
                continue
            content = {store: self._house.sealed(kernel, env, generation.number, store) for store in STORES}
            if generation.op == "snapshot":
                assert content in self.states[env], f"{name} is no state that {env} was in: {content}"
            elif generation.op == "create":
                assert content == {"db": {"greeting": "hello"}, "media": {}}, f"{name} is not the base"
            else:
                source = generation.source
                assert source is not None
                if source.env != env:
                    self.absorb(kernel, source.env)
                assert content == self.published[str(source)], f"{name} is not what {source} is"
            if generation.op != "snapshot":
                self.states.setdefault(env, []).append(content)
                replaced = True
            self.published[name] = content
        return replaced

    def look(self, kernel: Kernel, env: str) -> Content:
        """What the stores hold now, read raw and checked."""
        self.absorb(kernel, env)
        capsule = kernel.environments[env]
        if kernel.branches(env):
            now = {store: self._house.content(kernel, env, store) for store in STORES}
        else:
            now = deepcopy(self.published[str(capsule.moment)])
        assert now in self.states[env], f"{env} holds {now}, which is none of {self.states[env]}"
        self.states[env] = [now]
        return now

    def opened(self, kernel: Kernel) -> None:
        """After an open: what was promised is there, every environment is whole and at rest, nothing else exists."""
        assert self._house.unreached(kernel) == []
        for moment in self.promised:
            assert kernel.world.generation(moment)
        for env, capsule in kernel.environments.items():
            assert capsule.phase in (Phase.PARKED, Phase.RETIRED), f"{env} is {capsule.phase}"
            self.absorb(kernel, env)
            self.states[env] = [self.published[str(capsule.moment)]]


class Simulation:
    """One run of one seed. ``trace`` tells what was done, for the reader of a failure."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.house = House()
        self.truth = Truth(self.house)
        self.trace: list[str] = []
        self.trouble = 0.0  # probability that a call or a commit goes wrong
        self.troubled = False  # whether it is above zero in this life
        self.after_crash: tuple[MemoryDisk, MemoryWorld] | None = None
        self.driven: set[str] = set()
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"e{self.names}"

    async def run(self) -> str:
        """All lives; the hash of the journal's last event is the fingerprint of the run."""
        for life in range(LIVES):
            await self.live(last=life == LIVES - 1)
        async with self.house.open(settings=SETTINGS, clock=SimulatedClock()) as kernel:
            self.truth.opened(kernel)
        return self.house.disk.rows[-1].hash

    async def live(self, *, last: bool) -> None:
        """Open, check what is found, work, and die; in the last life close in good order."""
        self.trouble = 0.0
        async with self.house.open(
            settings=SETTINGS,
            clock=SimulatedClock(),
            hook=self.call,
            before_commit=self.commit,
            after_commit=self.commit,
            check=last,
        ) as kernel:
            self.trace.append(f"opened, {kernel.recovered}")
            self.truth.opened(kernel)
            self.driven.clear()
            self.trouble = self.random.choice([0.0, 0.005, 0.02])
            self.troubled = self.trouble > 0
            async with anyio.create_task_group() as everybody:
                if not last:
                    everybody.start_soon(self.die, everybody.cancel_scope)
                async with anyio.create_task_group() as drivers:
                    everybody.start_soon(Disturber(self, kernel).run)
                    for _ in range(self.random.randint(1, 3)):
                        drivers.start_soon(Driver(self, kernel).run)
                everybody.cancel_scope.cancel()
            self.trouble = 0.0
            if self.after_crash is None:
                self.tidy(kernel)
                await kernel.collect()
        if self.after_crash is not None:
            self.house.disk, self.house.world = self.after_crash
            self.after_crash = None

    def tidy(self, kernel: Kernel) -> None:
        """Without broken calls nothing needs the collector, but versions whose sealing was cancelled."""
        if not self.troubled:
            assert [name for name in self.house.unreached(kernel) if "-v" not in name] == []

    async def die(self, scope: anyio.CancelScope) -> None:
        """At some moment the process is gone: what is then on disk and in the world is all that there is."""
        await anyio.sleep(self.random.uniform(0, 40))
        old, disk = self.house.disk, MemoryDisk()
        keep = self.random.randint(old.synced, len(old.rows))
        disk.rows, disk.synced = old.rows[:keep], keep
        self.after_crash = (disk, self.house.world.survivors())
        self.trace.append(f"crash: {keep} of {len(old.rows)} events survive, {old.synced} of them were synced")
        self.trouble = 0.0
        scope.cancel()

    async def call(self, call: Call) -> None:
        """The world's mischief."""
        if self.random.random() < 0.2:
            await anyio.sleep(self.random.uniform(0, 0.01))
        if self.random.random() >= self.trouble:
            return
        kind = self.random.choice(["fails", "stalls", "stalls for long"])
        self.trace.append(f"{call.when} {call.method} of {call.resource} for {call.env}: it {kind}")
        if kind == "fails":
            raise ResourceFailed("simulated")
        await anyio.sleep(self.random.uniform(0, 3 if kind == "stalls" else 200))

    async def commit(self) -> None:
        """The disk's."""
        await anyio.sleep(self.random.uniform(0, 0.01))
        if self.random.random() < self.trouble:
            self.trace.append("a commit fails, or its reply is lost")
            raise JournalUnavailable("simulated")

    async def tried(self, what: str, work: Callable[[], Awaitable[object]]) -> object:
        """The result, or None where it failed or its caller lost patience. Only the engine's own errors may come."""
        patience_s = self.random.uniform(0, 0.1) if self.random.random() < 0.2 else 1000.0
        try:
            with anyio.move_on_after(patience_s):
                result = await work()
                self.trace.append(f"{what}: {result}")
                return result
            self.trace.append(f"{what}: cancelled")
        except StateforkError as error:
            self.trace.append(f"{what}: {error!r}")
            if not self.may_come(error):
                raise AssertionError(f"{what} met {error!r}") from error
        return None

    def may_come(self, error: StateforkError) -> bool:
        """Broken rules never; broken resources and disks only where somebody breaks them."""
        if isinstance(error.__cause__, AssertionError):
            return False
        if self.troubled:
            return True
        return not isinstance(error, ResourceFailed | JournalError | TransitionAborted) or isinstance(
            error, DrainTimeout
        )


class Driver:
    """The only one who writes into its environment."""

    def __init__(self, simulation: Simulation, kernel: Kernel) -> None:
        self._simulation = simulation
        self._truth = simulation.truth
        self._kernel = kernel
        self._random = simulation.random
        self._env = ""
        self._number = 0

    @property
    def _dead(self) -> bool:
        return self._simulation.after_crash is not None

    async def run(self) -> None:
        await self._settle_down()
        for _ in range(STEPS):
            if not self._env or self._dead:
                return
            await self._random.choice([self._write] * 6 + [self._change] * 3 + [self._bear])()
            await anyio.sleep(self._random.uniform(0, 1))

    async def _settle_down(self) -> None:
        """A parked environment of an earlier life, or a new one."""
        free = [
            env
            for env, capsule in sorted(self._kernel.environments.items())
            if capsule.phase is Phase.PARKED and env not in self._simulation.driven
        ]
        if free and self._random.random() < 0.7:
            self._env = self._random.choice(free)
            self._simulation.driven.add(self._env)
            return
        name = self._simulation.name()
        self._simulation.driven.add(name)
        if await self._simulation.tried(f"create {name}", lambda: self._kernel.create(name)):
            self._env = name

    async def _write(self) -> None:
        """The same number into one store, then into the other."""
        self._number = self._simulation.random.getrandbits(32)
        for store in STORES:
            if self._dead:
                return
            before = self._truth.look(self._kernel, self._env)
            after = deepcopy(before)
            after[store][self._env] = self._number
            self._truth.states[self._env] = [before, after]
            action = {"type": "put", "in": store, "key": self._env, "value": self._number}
            result = await self._simulation.tried(
                f"{self._env} writes {self._number} into {store}",
                lambda action=action: self._kernel.act(self._env, action),  # type: ignore[misc]  # bound at once
            )
            if self._dead:
                return
            replaced = self._truth.absorb(self._kernel, self._env)
            if replaced:  # its context was given up meanwhile: before, or after the write
                for state in list(self._truth.states[self._env]):
                    written = deepcopy(state)
                    written[store][self._env] = self._number
                    self._truth.states[self._env].append(written)
            elif getattr(result, "outcome", "") == "ok":
                self._truth.states[self._env] = [after]
            self._truth.look(self._kernel, self._env)

    async def _change(self) -> None:
        """A transition; what it gave back as done must be so."""
        env, kernel = self._env, self._kernel
        moments = [one.moment for one in kernel.environments[env].generations.values()]
        target = self._random.choice(moments)
        op, work = self._random.choice(
            [
                ("snapshot", lambda: kernel.snapshot(env)),
                ("reset", lambda: kernel.reset(env)),
                ("restore", lambda: kernel.restore(env, target)),
                ("park", lambda: kernel.park(env)),
                ("recover", lambda: kernel.recover(env)),
            ]
        )
        self._truth.look(kernel, env)
        source = kernel.environments[env].origin if op == "reset" else target
        done = await self._simulation.tried(f"{op} {env} {source}", work)
        if self._dead:
            return
        self._truth.absorb(kernel, env)
        if isinstance(done, Moment):
            self._truth.promised.append(done)
            if op in ("reset", "restore"):
                self._truth.states[env] = [self._truth.published[str(source)]]
        self._truth.look(kernel, env)

    async def _bear(self) -> None:
        """Children of the present; each may go wrong by itself."""
        if len(self._kernel.environments) >= ENVIRONMENTS_MAX:
            return
        names = [self._simulation.name() for _ in range(self._random.randint(1, 2))]
        self._simulation.driven.update(names)
        self._truth.look(self._kernel, self._env)
        born = await self._simulation.tried(f"fork {self._env}", lambda: self._kernel.fork(self._env, names))
        if self._dead:
            return
        self._truth.look(self._kernel, self._env)
        for name in names:
            if name in self._kernel.environments and self._kernel.environments[name].generation:
                self._truth.look(self._kernel, name)
        if isinstance(born, list):
            self._truth.promised.extend(result.moment for result in born if result.moment is not None)


class Disturber:
    """Writes nothing, and is always there."""

    def __init__(self, simulation: Simulation, kernel: Kernel) -> None:
        self._simulation = simulation
        self._kernel = kernel
        self._random = simulation.random

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._random.uniform(0, 2))
            usable = [env for env, one in sorted(self._kernel.environments.items()) if one.phase is not Phase.RETIRED]
            if not usable:
                continue
            env = self._random.choice(usable)
            what, work = self._random.choice(
                [
                    ("snapshot", self._kernel.snapshot),
                    ("lease", self._lease),
                    ("judge", lambda env: self._kernel.evaluate(env, "same", self._judge)),
                    ("request", self._request),
                    ("collect", lambda _: self._kernel.collect()),
                ]
            )
            await self._simulation.tried(f"{what} {env}", lambda: work(env))  # noqa: B023 - awaited in this turn

    async def _lease(self, env: str) -> None:
        async with self._kernel.lease(env, "disturber") as lease:
            before = (lease.generation, lease.epoch)
            await anyio.sleep(self._random.uniform(0, 8))
            assert (lease.generation, lease.epoch) == before

    async def _judge(self, context: EvaluationContext) -> float:
        """What an evaluator reads lies in branches that stay the same, and only grows by what is acted meanwhile."""
        branches = [str(context.bindings[store].address["namespace"]) for store in STORES]
        await anyio.sleep(self._random.uniform(0, 2))
        assert branches == [str(context.bindings[store].address["namespace"]) for store in STORES]
        for branch in branches:
            self._simulation.house.world.read(branch)
        return 1.0

    async def _request(self, env: str) -> None:
        if self._kernel.branches(env):
            async with self._kernel.admit(request(self._kernel, env)):
                await anyio.sleep(self._random.uniform(0, 3))
