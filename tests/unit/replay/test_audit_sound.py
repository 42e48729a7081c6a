"""No false alarms: whatever a sound engine does, and whatever goes wrong around it, its journal is clean."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefork.adapters.resources.memory import Call
from statefork.engine.errors import ResourceFailed
from statefork.engine.kernel import EvaluationContext, Kernel
from statefork.engine.retention import Retention
from statefork.journal.errors import StateforkError
from statefork.journal.log import Recorded
from statefork.journal.memory import MemoryDisk, open_memory_journal
from statefork.journal.values import Moment
from statefork.replay.audit.run import Audit
from statefork.replay.auditing import EngineFold
from tests.contract.engine_kit import REVOKE, SMALL, House, request
from tests.unit.replay.told import Told

ENVS = ("a", "b", "c")
OPERATIONS = (
    "create", "act", "act", "fail", "wait", "snapshot", "reset", "restore", "fork", "clone", "park", "activate",
    "retire", "evaluate", "input", "request", "late request", "collect", "recover", "mark", "prune", "break", "mend",
    "crash",
)  # fmt: skip
steps = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(ENVS), st.integers(1, 4)), max_size=30)


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="statefork.engine")


class Run:
    """Does steps on one engine after the other; what is refused is refused."""

    def __init__(self) -> None:
        self.house = House(contract=SMALL)
        self.broken = 0
        self.number = 0

    async def hook(self, call: Call) -> None:
        """While something is broken, every third call of a resource fails."""
        self.number += 1
        if self.broken and self.number % 3 == 0 and call.when == "before":
            raise ResourceFailed("broken", resource=call.resource)

    async def run(self, todo: list[tuple[str, str, int]]) -> list[Recorded]:
        while True:
            async with self.house.open(hook=self.hook, check=False) as kernel:
                while todo and todo[0][0] != "crash":
                    try:
                        await self.step(kernel, *todo.pop(0))
                    except StateforkError:
                        continue
                crashed = self.photograph() if todo else None
                self.broken = 0
            if crashed is None:
                async with open_memory_journal(self.house.disk) as journal:
                    return [recorded async for recorded in journal.read()]
            self.house = crashed
            todo.pop(0)

    def photograph(self) -> House:
        """What a crash would leave now."""
        house = House(contract=SMALL)
        house.disk = MemoryDisk()
        house.disk.rows = list(self.house.disk.rows)
        house.disk.synced = len(house.disk.rows)
        house.world = self.house.world.survivors()
        return house

    async def step(self, kernel: Kernel, what: str, env: str, number: int) -> None:
        def at() -> Moment:
            return Moment(env=env, generation=number)

        async def wait() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.waiting, kernel, env)
                await anyio.wait_all_tasks_blocked()
                with suppress(StateforkError):
                    await kernel.snapshot(env, drain=REVOKE)

        async def late_request() -> None:
            old = request(kernel, env)
            await kernel.reset(env)
            async with kernel.admit(old):
                raise AssertionError("an old ticket was accepted")

        async def one_request() -> None:
            async with kernel.admit(request(kernel, env)) as lease:
                kernel.record_input(lease, method="POST", url="http://x/", headers={}, body=b"", status=200)

        async def given_input() -> None:
            async with kernel.lease(env, "curl") as lease:
                kernel.record_input(lease, method="PUT", url="http://x/", headers={}, body=b"x", status=200)

        async def meddle(broken: int) -> None:
            self.broken = broken

        doing: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: kernel.create(env),
            "act": lambda: kernel.act(env, {"type": "put", "in": "db", "key": "k", "value": number}),
            "fail": lambda: kernel.act(env, {"type": "fail", "in": "db", "key": "k"}),
            "wait": wait,
            "snapshot": lambda: kernel.snapshot(env),
            "reset": lambda: kernel.reset(env),
            "restore": lambda: kernel.restore(env, at()),
            "fork": lambda: kernel.fork(at(), [f"{env}{number}"]),
            "clone": lambda: kernel.clone(at(), f"{env}{number}"),
            "park": lambda: kernel.park(env),
            "activate": lambda: kernel.activate(env),
            "retire": lambda: kernel.retire(env),
            "evaluate": lambda: kernel.evaluate(env, "score", _judge),
            "input": given_input,
            "request": one_request,
            "late request": late_request,
            "collect": kernel.collect,
            "recover": lambda: kernel.recover(env),
            "mark": lambda: kernel.upkeep.mark(at(), "here" if number % 2 else ""),
            "prune": lambda: kernel.upkeep.prune(
                env, Retention(forked=True) if number == 1 else Retention(last=number)
            ),
            "break": lambda: meddle(1),
            "mend": lambda: meddle(0),
        }
        await doing[what]()

    async def waiting(self, kernel: Kernel, env: str) -> None:
        try:
            await kernel.act(env, {"type": "wait", "in": "db", "key": "never"}, timeout_s=1.0)
        except StateforkError:
            return


async def _judge(seen: EvaluationContext) -> float:
    return 1.0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_random_workloads_are_clean(todo: list[tuple[str, str, int]]) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)  # nobody waits for a deadline
    options = {"clock": clock}
    recorded = anyio.run(Run().run, [("create", "a", 1), *todo], backend="trio", backend_options=options)
    report = Audit([EngineFold]).run(Told.of(recorded).rows())
    assert report.clean, list(report.lines())
