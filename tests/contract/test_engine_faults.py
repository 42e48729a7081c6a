"""A transition that fails or is cancelled, at whatever moment, leaves the old or the new generation, whole (I9)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from msgspec.structs import replace

from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.errors import (
    EnvironmentExists,
    InDoubt,
    ResourceBusy,
    ResourceFailed,
    StateforkError,
    TornCut,
    TransitionAborted,
)
from statefork.engine.kernel import Kernel
from statefork.journal.errors import JournalUnavailable
from statefork.journal.events import GenerationPublished
from statefork.journal.events import TransitionAborted as AbortedEvent
from statefork.journal.values import Moment
from tests.contract.engine_kit import SETTINGS, SMALL, STORES, House, Pause, points, put, until

pytestmark = pytest.mark.anyio
HASTY = replace(SETTINGS, settle_s=0.0)


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """What is injected here is logged with tracebacks, thousands of them."""
    caplog.set_level(logging.CRITICAL, logger="statefork.engine")


Operation = Callable[[Kernel], Awaitable[object]]


async def fork_one(kernel: Kernel) -> None:
    (result,) = await kernel.fork("shop", ["child"])
    if result.error is not None:
        raise result.error


async def act_after_parking(kernel: Kernel) -> None:
    await kernel.park("shop")
    await kernel.activate("shop")


OPERATIONS: dict[str, Operation] = {
    "snapshot": lambda kernel: kernel.snapshot("shop"),
    "reset": lambda kernel: kernel.reset("shop"),
    "restore": lambda kernel: kernel.restore("shop", Moment(env="shop", generation=2)),
    "park": lambda kernel: kernel.park("shop"),
    "park and activate": act_after_parking,
    "retire": lambda kernel: kernel.retire("shop"),
    "fork": fork_one,
    "clone": lambda kernel: kernel.clone("shop", "child"),
    "create": lambda kernel: kernel.create("child"),
}


class Points:
    """Counts every call of a resource and every commit, and does something at one of them."""

    def __init__(self, at: int, then: Callable[[], None]) -> None:
        self.left = at
        self.armed = False
        self.fired = ""
        self._then = then

    async def call(self, call: Call) -> None:
        await self.point(f"{call.when} {call.method} of {call.resource}")

    async def commit(self) -> None:
        await self.point("commit")

    async def point(self, name: str) -> None:
        if not self.armed:
            return
        self.left -= 1
        if self.left == 0:
            self.fired = name
            self._then()


async def prepare(kernel: Kernel) -> None:
    """An environment with a published write and an unpublished one."""
    await kernel.create("shop")
    await put(kernel, "shop", "published", 1)
    await kernel.snapshot("shop")
    await put(kernel, "shop", "tail", 2)


async def failure_of(work: Awaitable[object]) -> StateforkError | None:
    """What of ours stopped it, if anything."""
    try:
        await work
    except (TransitionAborted, ResourceFailed) as error:
        return error
    return None


async def look(house: House, kernel: Kernel, operation: str, fired: str) -> None:
    """Old or new, whole: nothing is staged, the tail is there or was published or was given up by name."""
    assert house.unreached(kernel) == [], fired
    capsule = kernel.environments["shop"]
    assert capsule.phase in (Phase.SERVING, Phase.PARKED, Phase.RETIRED), fired
    assert capsule.transition is None, fired
    if "child" in kernel.environments:
        assert kernel.environments["child"].generation == 1, fired
    if capsule.phase is Phase.RETIRED:
        assert operation == "retire"
        return
    number = (await put(kernel, "shop", "after", 3)).number
    content = house.content(kernel, "shop")
    switched = capsule.head.op in ("reset", "restore")
    if switched:
        wanted = {"greeting": "hello", "after": 3} | ({"published": 1} if capsule.head.op == "restore" else {})
        assert content == wanted, fired
    elif capsule.head.op == "recover":
        assert capsule.head.lost_actions == (2,)
        assert content == {"greeting": "hello", "published": 1, "after": 3}, fired
    else:
        assert content == {"greeting": "hello", "published": 1, "tail": 2, "after": 3}, fired
        assert number == 3


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_cancelled_at_every_point(operation: str) -> None:
    for at in points():
        house, scope = House(contract=SMALL), anyio.CancelScope()
        point = Points(at, scope.cancel)
        async with house.open(hook=point.call, before_commit=point.commit, after_commit=point.commit) as kernel:
            await prepare(kernel)
            point.armed = True
            with scope:
                await OPERATIONS[operation](kernel)
            point.armed = False
            assert [name for name in house.unreached(kernel) if "-v" not in name] == [], point.fired
            await kernel.collect()  # a version that was sealed and never reported is the collector's
            await look(house, kernel, operation, point.fired)
        if not point.fired:
            break
    assert at > 8


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_failing_at_every_point(operation: str) -> None:
    def fail() -> None:
        raise ResourceFailed("it broke")

    for at in points():
        house = House(contract=SMALL)
        point = Points(at, fail)
        async with house.open(hook=point.call) as kernel:
            await prepare(kernel)
            point.armed = True
            error = await failure_of(OPERATIONS[operation](kernel))
            point.armed = False
            if error is not None:
                assert error.facts.get("component") in kernel.contract.order, repr(error)
                assert "it broke" in str(error)
                assert error.facts.get("cause", "resource_failed") == "resource_failed"
            await kernel.collect()  # what could not be closed after a publish is the collector's
            await look(house, kernel, operation, point.fired)
            if operation not in ("retire", "create", "clone", "fork"):
                await OPERATIONS[operation](kernel)
        if not point.fired:
            break
    assert at > 8


@pytest.mark.parametrize("lost", [False, True], ids=["disk full", "reply lost"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_the_disk_fails_at_every_commit(operation: str, lost: bool) -> None:
    def fail() -> None:
        raise JournalUnavailable("no space left on device")

    for at in points():
        house = House(contract=SMALL)
        point = Points(at, fail)
        hooks = {"after_commit": point.commit} if lost else {"before_commit": point.commit}
        async with house.open(**hooks) as kernel:  # type: ignore[arg-type]  # the two hooks are of one kind
            await prepare(kernel)
            point.armed = True
            try:
                await OPERATIONS[operation](kernel)
            except JournalUnavailable:
                assert not lost, "what was kept is read back and goes on"
            point.armed = False
            await look(house, kernel, operation, point.fired)
        if not point.fired:
            break
    assert at > 1


async def settle_all(kernel: Kernel) -> None:
    """The next command on everything that is in doubt."""
    conductor = kernel._conductor
    for env in [env for env, live in conductor.lives.items() if live.doubt]:
        if env in kernel.environments:
            await conductor.settle(env)
        else:
            with suppress(EnvironmentExists):
                await kernel.create(env)
        assert not kernel.in_doubt(env)


@pytest.mark.parametrize("kept", [False, True], ids=["not kept", "kept"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_in_doubt_at_every_commit(operation: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise JournalUnavailable("the server is away")

    for at in points():
        house = House(contract=SMALL)
        with monkeypatch.context() as patch:

            def cut(house: House = house, patch: pytest.MonkeyPatch = patch) -> None:
                patch.setattr(house.journal, "append", away)
                patch.setattr(house.journal, "read", away)
                away()

            point = Points(at, cut)
            hooks = {"after_commit": point.commit} if kept else {"before_commit": point.commit}
            async with house.open(settings=HASTY, **hooks) as kernel:  # type: ignore[arg-type]  # the hooks are of one kind
                await prepare(kernel)
                point.armed = True
                with suppress(InDoubt):
                    await OPERATIONS[operation](kernel)
                point.armed = False
                patch.undo()
                await settle_all(kernel)
                await kernel.collect()
                await look(house, kernel, operation, point.fired)
        if not point.fired:
            break
    assert at > 1


async def test_a_journal_that_cannot_be_read_back_leaves_it_frozen_until_it_is_reopened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House()
    broken = False

    async def lose() -> None:
        if broken:
            raise JournalUnavailable("the reply was lost")

    def unreadable(**_: object) -> None:
        raise JournalUnavailable("and it can't be read")

    async with house.open(after_commit=lose, check=False) as kernel:
        await prepare(kernel)
        assert house.journal is not None
        monkeypatch.setattr(house.journal, "read", unreadable)
        broken = True
        with pytest.raises(InDoubt):
            await kernel.snapshot("shop")
        broken = False
        with pytest.raises(InDoubt):
            await kernel.reset("shop")
        assert kernel.world.environments["shop"].generation == 2
    async with house.open() as kernel:
        assert kernel.recovered.settled
        assert kernel.environments["shop"].head.op == "recover"
        assert kernel.environments["shop"].head.lost_actions == (2,)
        await put(kernel, "shop", "after", 3)


@pytest.mark.parametrize("component", ["db", "media", "app", "page"])
@pytest.mark.parametrize("method", ["branch", "bind", "probe"])
async def test_a_failing_component_cancels_its_siblings_and_is_named(component: str, method: str) -> None:
    house = House()
    failing = False

    async def hook(call: Call) -> None:
        if not failing or call.when == "after":
            return
        if (call.resource, call.method) == (component, method):
            raise ResourceFailed("no room")
        if call.method == method and call.resource in STORES:
            await anyio.sleep_forever()  # only the cancellation of siblings ends this

    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        failing = True
        if component in ("app", "page") and method != "branch":
            return  # they wait for the stalled stores: nothing could fail
        with pytest.raises(TransitionAborted) as caught:
            await kernel.reset("shop")
        failing = False
        assert caught.value.facts["component"] == component
        (aborted,) = await house.events(AbortedEvent)
        assert (aborted.code, aborted.component, aborted.op) == ("resource_failed", component, "reset")
        await look(house, kernel, "reset", method)


async def test_a_busy_resource_aborts_a_snapshot_by_name() -> None:
    async def hook(call: Call) -> None:
        if (call.resource, call.method, call.when) == ("db", "quiesce", "before") and armed:
            raise ResourceBusy("db: an open transaction of session 7", hint="End it.")

    armed = False
    house = House()
    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        armed = True
        with pytest.raises(TransitionAborted, match="session 7") as caught:
            await kernel.snapshot("shop")
        assert (caught.value.facts["cause"], caught.value.facts["component"]) == ("resource_busy", "db")
        told = "snapshot of shop was aborted: db: quiescing: an open transaction of session 7. End it. shop@2 serves on"
        assert str(caught.value) == told
        armed = False
        await look(house, kernel, "snapshot", "")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_write_between_the_seals_tears_the_cut(store: str, moment: str) -> None:
    house = House()
    armed = False

    async def hook(call: Call) -> None:
        if armed and (call.resource, call.method, call.when) == (store, "seal", moment):
            branch = kernel.branches("shop")[store]
            house.world.write(branch.id, "meddled", True)

    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        armed = True
        with pytest.raises(TornCut) as caught:
            await kernel.snapshot("shop")
        armed = False
        assert caught.value.facts["component"] == store
        assert house.unreached(kernel) == []
        assert kernel.environments["shop"].generation == 2
        await kernel.snapshot("shop")
        assert house.sealed(kernel, "shop", 3, store)["meddled"] is True


async def test_a_context_that_cannot_be_thawed_is_given_up_by_name() -> None:
    house = House()
    armed = ""

    async def hook(call: Call) -> None:
        if armed and (call.method, call.when) == ("thaw", "before"):
            raise ResourceFailed("it does not wake up")
        if armed == "abort" and (call.method, call.when) == ("seal", "before"):
            raise ResourceFailed("it can't be sealed")

    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        armed = "publish"
        assert str(await kernel.snapshot("shop")) == "shop@3"
        assert kernel.environments["shop"].phase is Phase.PARKED
        armed = ""
        await put(kernel, "shop", "again", 3)
        assert house.content(kernel, "shop")["tail"] == 2
        armed = "abort"
        with pytest.raises(TransitionAborted):
            await kernel.snapshot("shop")
        armed = ""
        assert kernel.environments["shop"].head.op == "recover"
        assert kernel.environments["shop"].head.lost_actions == (3,)
        await put(kernel, "shop", "after", 4)
        assert "again" not in house.content(kernel, "shop")


async def test_staging_that_takes_too_long_is_aborted() -> None:
    house = House()
    pause = Pause("page", "bind")
    armed = False

    async def hook(call: Call) -> None:
        if armed:
            await pause(call)

    settings = replace(SETTINGS, stage_s=0.5)
    async with house.open(hook=hook, settings=settings) as kernel:
        await prepare(kernel)
        armed = True
        with pytest.raises(TransitionAborted, match=r"page: staging: not done within 0\.5 s") as caught:
            await kernel.reset("shop")
        assert caught.value.facts["component"] == "page"
        armed = False
        await look(house, kernel, "reset", "")


async def test_a_store_that_is_written_on_and_on_is_not_published() -> None:
    house = House()
    armed = False

    async def hook(call: Call) -> None:
        if armed and (call.resource, call.method, call.when) == ("app", "bind", "after"):
            for name, namespace in house.world.branches.items():
                if name.startswith("db-") and namespace.handle.env == "shop" and namespace.handle.epoch == 3:
                    house.world.write(name, "meddled", True)

    async with house.open(hook=hook) as kernel:
        await prepare(kernel)
        armed = True
        with pytest.raises(TransitionAborted, match="still written"):
            await kernel.reset("shop")
        armed = False
        await look(house, kernel, "reset", "")


async def test_transitions_of_one_environment_wait_for_each_other_in_order() -> None:
    house = House()
    async with house.open() as kernel:
        await prepare(kernel)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(kernel.snapshot, "shop")
                tasks.start_soon(kernel.reset, "shop")
        numbers = [event.generation for event in await house.events(GenerationPublished)]
        assert numbers == list(range(1, 9))


async def test_a_founding_that_waited_for_one_that_failed_is_another_transition() -> None:
    house = House(contract=SMALL)
    pause = Pause("db", "bind")

    async def fails_once(call: Call) -> None:
        if call.method == "bind" and not pause.reached.is_set():
            await pause(call)
            raise OSError("no")

    outcomes: list[str] = []

    async def create() -> None:
        try:
            outcomes.append(str(await kernel.create("child")))
        except TransitionAborted as error:
            outcomes.append(error.code)

    async with house.open(hook=fails_once) as kernel:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(create)
            await pause.reached.wait()
            await until(lambda: bool(kernel._conductor.lives["child"].lock.statistics().tasks_waiting))
            pause.go_on.set()
        assert outcomes == ["transition_aborted", "child@1"]


# Only asyncio has tasks that are cancelled from outside any scope.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancel_of_asyncio_itself_respects_the_shields() -> None:
    house = House()
    pause = Pause("db", "thaw")
    async with house.open(hook=pause) as kernel:
        await prepare_without_snapshot(kernel)
        task = asyncio.create_task(kernel.snapshot("shop"))
        await pause.reached.wait()
        task.cancel()
        await until(lambda: task.cancelling() > 0)
        pause.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert kernel.environments["shop"].generation == 2
        await put(kernel, "shop", "after", 3)


async def prepare_without_snapshot(kernel: Kernel) -> None:
    await kernel.create("shop")
    await put(kernel, "shop", "tail", 1)
