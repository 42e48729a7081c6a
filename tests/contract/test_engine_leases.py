"""Leases and drains: one generation per operation, nothing published under a live lease, everything held is named."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from msgspec.structs import replace

from statefork.engine.capsule import Phase
from statefork.engine.errors import (
    DrainTimeout,
    EnvironmentFrozen,
    HeldByCaller,
    LeaseRevoked,
    StaleGeneration,
    UnknownEnvironment,
)
from statefork.engine.kernel import Kernel
from statefork.engine.leases import current_lease
from statefork.journal.events import (
    ActionEnded,
    Event,
    InputRecorded,
    RequestRefused,
    TransitionAborted,
    TransitionDrained,
)
from statefork.journal.events import LeaseRevoked as RevokedEvent
from statefork.journal.values import Held
from tests.contract.engine_kit import QUICK, REVOKE, House, Later, Pause, put, request, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def house() -> House:
    return House()


class Holder:
    """Somebody who holds a lease in a task of its own until told to let go, or until it is revoked."""

    def __init__(self, kernel: Kernel, env: str = "shop", *, deaf: bool = False) -> None:
        self._kernel = kernel
        self._env = env
        self._deaf = deaf  # can't be cancelled: a thread that nobody can stop
        self.began = anyio.Event()
        self.let_go = anyio.Event()
        self.ended = anyio.Event()
        self.error: Exception | None = None
        self.generations: list[int] = []

    async def __call__(self) -> None:
        try:
            async with self._kernel.lease(self._env, "the holder") as lease:
                self.generations.append(lease.generation)
                self.began.set()
                with anyio.CancelScope(shield=self._deaf):
                    await self.let_go.wait()
                self.generations.append(lease.generation)
        except LeaseRevoked as error:
            self.error = error
        self.ended.set()


def held(events: list[Event]) -> list[tuple[str, str]]:
    found: list[Held] = [item for event in events for item in event.held]  # type: ignore[union-attr]  # of drains only
    return [(item.holder, item.how) for item in found]


async def test_a_lease_keeps_its_generation_and_is_waited_for(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        holder = Holder(kernel)
        tasks.start_soon(holder)
        await holder.began.wait()
        snapshot = Later(kernel.snapshot, "shop")
        tasks.start_soon(snapshot)
        snapshot.go()
        await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
        with pytest.raises(EnvironmentFrozen) as caught:
            await put(kernel, "shop", "a", 1)
        assert caught.value.facts["generation"] == 1
        assert kernel.environments["shop"].generation == 1
        holder.let_go.set()
        await snapshot.done()
        assert kernel.environments["shop"].generation == 2
        assert holder.generations == [1, 1]
        await put(kernel, "shop", "a", 1)
        assert held(await house.events(TransitionDrained)) == [("the holder", "ended")]


async def test_a_drain_that_aborts_names_the_holders_and_leaves_them_alone(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        holder = Holder(kernel)
        tasks.start_soon(holder)
        await holder.began.wait()
        for change in (kernel.snapshot, kernel.reset, kernel.park):
            with pytest.raises(DrainTimeout, match="the holder") as caught:
                await change("shop", drain=QUICK)  # type: ignore[operator]  # each takes a drain
            assert caught.value.facts["holders"] == "the holder"
        assert not holder.ended.is_set()
        await put(kernel, "shop", "a", 1)
        holder.let_go.set()
        await holder.ended.wait()
        assert holder.error is None
        aborted = await house.events(TransitionAborted)
        assert [(event.op, event.code) for event in aborted] == [
            ("snapshot", "drain_timeout"),
            ("reset", "drain_timeout"),
        ]


@pytest.mark.parametrize("op", ["snapshot", "reset", "retire"])
async def test_a_drain_that_revokes_cancels_and_joins(house: House, op: str) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        holder = Holder(kernel)
        tasks.start_soon(holder)
        await holder.began.wait()
        await getattr(kernel, op)("shop", drain=REVOKE)
        await holder.ended.wait()
        assert isinstance(holder.error, LeaseRevoked)
        assert holder.error.facts["holder"] == "the holder"
        (revoked,) = await house.events(RevokedEvent)
        assert (revoked.holder, revoked.generation) == ("the holder", 1)
        if op != "retire":
            assert held(await house.events(TransitionDrained)) == [("the holder", "revoked")]


async def test_a_revoked_action_is_recorded_as_unknown(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        errors: list[Exception] = []

        async def hang() -> None:
            try:
                await kernel.act("shop", {"type": "wait", "key": "never"})
            except LeaseRevoked as error:
                errors.append(error)

        tasks.start_soon(hang)
        await until(lambda: kernel.environments["shop"].actions == 1)
        await kernel.reset("shop", drain=REVOKE)
        await until(lambda: bool(errors))
        (ended,) = await house.events(ActionEnded)
        assert (ended.number, ended.outcome, ended.generation) == (1, "unknown", 1)
        assert (await put(kernel, "shop", "a", 1)).number == 1


async def test_a_straggler_that_cannot_be_joined(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        holder = Holder(kernel, deaf=True)
        tasks.start_soon(holder)
        await holder.began.wait()
        with pytest.raises(DrainTimeout, match="can't be joined"):  # continuing: it still holds the branch
            await kernel.snapshot("shop", drain=REVOKE)
        await put(kernel, "shop", "a", 1)
        await kernel.reset("shop", drain=REVOKE)  # switching: it holds an abandoned branch
        assert house.content(kernel, "shop") == {"greeting": "hello"}
        assert held(await house.events(TransitionDrained)) == [("the holder", "fenced")]
        assert not holder.ended.is_set()
        await put(kernel, "shop", "b", 2)
        await kernel.snapshot("shop")
        holder.let_go.set()
        await holder.ended.wait()
        assert holder.generations == [1, 1]


async def test_a_fenced_action_ends_once_and_unknown(house: House) -> None:
    stuck = Pause("db", "act", "after")

    async def hook(call: object) -> None:
        with anyio.CancelScope(shield=True):
            await stuck(call)  # type: ignore[arg-type]  # a Call

    async with house.open(hook=hook) as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        ended: list[str] = []

        async def act() -> None:
            with pytest.raises(LeaseRevoked):
                await put(kernel, "shop", "late", 1)
            ended.append("act")

        tasks.start_soon(act)
        await stuck.reached.wait()
        await kernel.reset("shop", drain=REVOKE)
        assert "late" not in house.content(kernel, "shop")
        stuck.go_on.set()
        await until(lambda: bool(ended))
        assert [(event.number, event.outcome) for event in await house.events(ActionEnded)] == [(1, "unknown")]


async def test_what_a_draining_lease_causes_is_its_child(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        snapshot = Later(kernel.snapshot, "shop")
        tasks.start_soon(snapshot)
        async with kernel.lease("shop", "the parent") as parent:
            snapshot.go()
            await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
            async with kernel.lease("shop", "the child") as child:
                assert child.tree is parent
                assert current_lease() is child
            assert current_lease() is parent
            with pytest.raises(EnvironmentFrozen):
                await put(kernel, "shop", "a", 1)  # an action is a new decision, not something caused
            assert kernel.environments["shop"].generation == 1
        await snapshot.done()
        assert held(await house.events(TransitionDrained)) == [("the child", "ended"), ("the parent", "ended")]


async def test_a_root_that_has_ended_still_waits_for_its_children(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        child = Holder(kernel)
        async with kernel.lease("shop", "the parent"):
            tasks.start_soon(child)
            await child.began.wait()
        tasks.start_soon(kernel.snapshot, "shop")
        await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
        await anyio.wait_all_tasks_blocked()
        assert kernel.environments["shop"].generation == 1
        child.let_go.set()
        await until(lambda: kernel.environments["shop"].generation == 2)


async def test_a_task_that_outlives_its_lease_gets_a_root_of_its_own(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        go_on, done = anyio.Event(), anyio.Event()

        async def background() -> None:
            await go_on.wait()
            async with kernel.lease("shop", "background") as lease:
                assert lease.parent is None
                assert lease.generation == 2
            done.set()

        async with kernel.lease("shop", "the parent"):
            tasks.start_soon(background)
        await kernel.snapshot("shop")
        go_on.set()
        await done.wait()


async def test_who_holds_a_lease_cannot_change_what_it_holds(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("other")
        async with kernel.lease("shop", "me"):
            changes: list[Callable[[], object]] = [
                lambda: kernel.snapshot("shop"),
                lambda: kernel.reset("shop"),
                lambda: kernel.park("shop"),
                lambda: kernel.retire("shop"),
                lambda: kernel.fork("shop", ["child"]),
            ]
            for change in changes:
                with pytest.raises(HeldByCaller, match="me"):
                    await change()  # type: ignore[misc]  # a coroutine
            await kernel.snapshot("other")


async def test_a_lease_may_insist_on_an_epoch(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.reset("shop")
        async with kernel.lease("shop", "me", expect=2):
            pass
        with pytest.raises(StaleGeneration) as caught:
            async with kernel.lease("shop", "me", expect=1):
                pass
        assert (caught.value.facts["epoch"], caught.value.facts["epoch_now"]) == (1, 2)


async def test_a_lease_on_a_parked_environment_activates_it_once(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.park("shop")
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(put, kernel, "shop", f"k{number}", number)
        assert kernel.environments["shop"].activation == 2
        assert kernel.environments["shop"].actions == 5


async def test_background_work_is_drained_by_name(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        await kernel.act("shop", {"type": "leave", "in": "app", "key": "mailer"})
        with pytest.raises(DrainTimeout, match="app: mailer"):
            await kernel.snapshot("shop", drain=QUICK)
        snapshot = Later(kernel.snapshot, "shop")
        tasks.start_soon(snapshot)
        snapshot.go()
        await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
        await anyio.wait_all_tasks_blocked()
        house.world.finish("mailer")
        await snapshot.done()
        await kernel.act("shop", {"type": "leave", "in": "app", "key": "mailer"})
        await kernel.snapshot("shop", drain=REVOKE)
        assert held(await house.events(TransitionDrained)) == [("app: mailer", "ended"), ("app: mailer", "revoked")]


async def test_background_work_that_cannot_be_ended(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        house.world.unjoinable.add("thread 7")
        await kernel.act("shop", {"type": "leave", "in": "app", "key": "thread 7"})
        with pytest.raises(DrainTimeout, match="thread 7"):
            await kernel.snapshot("shop", drain=REVOKE)
        await kernel.reset("shop", drain=REVOKE)
        assert held(await house.events(TransitionDrained)) == [("app: thread 7", "fenced")]
        await kernel.snapshot("shop", drain=QUICK)


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_a_request_that_no_action_caused_is_a_root_and_an_input(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        async with kernel.admit(request(kernel, "shop", method="POST")) as lease:
            assert lease.root
            assert lease.identity == next(iter(kernel.bindings("shop").values())).identity
            kernel.record_input(
                lease, method="POST", url="http://notes.example/", headers={"a": "b"}, body=b"x=1", status=201
            )
        (event,) = await house.events(InputRecorded)
        assert (event.generation, event.method, event.status, event.after_action) == (1, "POST", 201, 0)
        assert len(event.body) == 64


async def test_a_request_during_an_action_is_its_child_also_while_it_drains(house: House) -> None:
    pause = Pause("db", "act")
    async with house.open(hook=pause) as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        tasks.start_soon(put, kernel, "shop", "a", 1)
        await pause.reached.wait()
        through_proxy = request(kernel, "shop")
        through_site = request(kernel, "shop", identity=None)
        async with kernel.admit(through_proxy) as lease:
            assert not lease.root
        async with kernel.admit(through_site) as lease:
            assert lease.root, "somebody's script did not come from the action"
        tasks.start_soon(kernel.snapshot, "shop")
        await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
        async with kernel.admit(through_proxy) as lease:
            assert lease.generation == 1
        with pytest.raises(EnvironmentFrozen):
            async with kernel.admit(through_site):
                pass
        pause.go_on.set()
        await until(lambda: kernel.environments["shop"].generation == 2)
        (refused,) = await house.events(RequestRefused)
        assert (refused.status, refused.code, refused.env) == (503, "environment_frozen", "shop")


async def test_requests_of_an_evaluation_are_its_children_and_inputs(house: House) -> None:
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        snapshot = Later(kernel.snapshot, "shop")
        tasks.start_soon(snapshot)
        at_the_site = request(kernel, "shop", identity=None)

        async def check(_: object) -> float:
            snapshot.go()
            await until(lambda: kernel.environments["shop"].phase is Phase.DRAINING)
            async with kernel.admit(at_the_site) as lease:
                assert lease.root
                assert lease.generation == 1
            return 1.0

        assert await kernel.evaluate("shop", "asks the site", check) == 1.0


async def test_the_past_is_refused_with_both_epochs(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        old = request(kernel, "shop")
        await kernel.reset("shop")
        with pytest.raises(StaleGeneration) as caught:
            async with kernel.admit(old):
                pass
        assert (caught.value.facts["epoch"], caught.value.facts["epoch_now"]) == (1, 2)
        with pytest.raises(StaleGeneration):
            async with kernel.admit(request(kernel, "shop", pinned_epoch=1)):
                pass
        with pytest.raises(UnknownEnvironment):
            async with kernel.admit(replace(old, identity=None, env="nobody")):
                pass
        kernel.refuse(request(kernel, "shop"), status=421, code="unknown_host", detail="evil.example")
        refused = [(event.status, event.code) for event in await house.events(RequestRefused)]
        assert refused == [
            (409, "stale_generation"),
            (409, "stale_generation"),
            (421, "unknown_environment"),
            (421, "unknown_host"),
        ]


async def test_a_site_door_activates_a_parked_environment(house: House) -> None:
    async with house.open() as kernel:
        await kernel.create("shop")
        at_the_site = request(kernel, "shop", identity=None)
        await kernel.park("shop")
        async with kernel.admit(at_the_site) as lease:
            assert lease.identity.activation == 2


@pytest.mark.parametrize("op", ["snapshot", "reset"])
async def test_messages_are_held_across_a_freeze(house: House, op: str) -> None:
    pause = Pause("db", "seal" if op == "snapshot" else "branch")
    async with house.open(hook=pause if op == "snapshot" else None) as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        house.world.hook = pause
        message = request(kernel, "shop", kind="websocket-message")
        came: list[object] = []

        async def send() -> None:
            try:
                async with kernel.admit(message) as lease:
                    came.append(lease.generation)
            except StaleGeneration as error:
                came.append(error)

        tasks.start_soon(getattr(kernel, op), "shop")
        await pause.reached.wait()
        tasks.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        assert came == []
        pause.go_on.set()
        await until(lambda: bool(came))
        assert came == [2] if op == "snapshot" else isinstance(came[0], StaleGeneration)


async def test_requests_of_a_staged_activation_belong_to_the_staging(house: House) -> None:
    house_door: list[object] = []

    async def hook(call: object) -> None:
        if (call.resource, call.method, call.when) == ("page", "bind", "before") and kernel_ready:  # type: ignore[attr-defined]  # a Call
            (binding,) = [one for one in house.world.bindings.values() if one.resource == "app" and is_new(one)]
            asked = request(kernel, "shop", identity=binding.identity, method="POST")
            async with kernel.admit(asked) as lease:
                house_door.append((lease.root, lease.generation, lease.identity.epoch))

    def is_new(binding: object) -> bool:
        return binding.identity.epoch == 2  # type: ignore[attr-defined, no-any-return]  # a Binding

    kernel_ready = False
    async with house.open(hook=hook) as kernel:
        await kernel.create("shop")
        kernel_ready = True
        await kernel.reset("shop")
        assert house_door == [(False, 2, 2)]


async def test_a_request_that_staging_left_open_is_revoked(house: House) -> None:
    ended: list[Exception] = []
    async with anyio.create_task_group() as tasks, house.open() as kernel:
        await kernel.create("shop")

        async def long_poll(identity: object) -> None:
            try:
                async with kernel.admit(request(kernel, "shop", identity=identity)):
                    await anyio.sleep_forever()
            except LeaseRevoked as error:
                ended.append(error)

        async def hook(call: object) -> None:
            if (call.resource, call.method, call.when) == ("page", "bind", "after"):  # type: ignore[attr-defined]  # a Call
                (binding,) = [one for one in house.world.bindings.values() if one.resource == "page" and is_new(one)]
                tasks.start_soon(long_poll, binding.identity)
                await anyio.wait_all_tasks_blocked()

        def is_new(binding: object) -> bool:
            return binding.identity.epoch == 2  # type: ignore[attr-defined, no-any-return]  # a Binding

        house.world.hook = hook
        await kernel.reset("shop")
        assert len(ended) == 1
        await put(kernel, "shop", "a", 1)
