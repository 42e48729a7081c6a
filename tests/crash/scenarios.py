"""What the engine is doing when it is killed: together these pass every row of the transition table.

``prepare`` runs once, in an engine that closes in good order, and ``craft`` may then append events as an engine of
another kind could have left them. Each kill begins with a copy of that state: ``before`` leads to the command, and
while ``command`` runs every boundary is counted. ``phases`` says what else is counted: the opening, the closing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec

from statefork.engine.capsule import Capsule
from statefork.engine.errors import LeaseRevoked
from statefork.engine.ports import Owner
from statefork.engine.settings import DrainPolicy
from statefork.journal.events import (
    EnvironmentActivated,
    EnvironmentCreated,
    EnvironmentForked,
    Event,
    GenerationPublished,
    Operation,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.log import Append, Journal
from statefork.journal.values import Moment
from tests.crash.hand import FOLDER
from tests.crash.hands import Hands

Craft = Callable[[Journal, Mapping[str, Capsule], Callable[[str], None]], Awaitable[None]]
Step = Callable[[Hands], Awaitable[None]]
SHOP_1 = Moment(env="shop", generation=1)
PATIENT = DrainPolicy(deadline_s=30.0)
AT_ONCE = DrainPolicy(deadline_s=0.01, then="abort")
REVOKE = DrainPolicy(deadline_s=0.01, then="revoke")


async def nothing(hands: Hands) -> None:
    """For scenarios that need no such step."""


async def leave_alone(journal: Journal, capsules: Mapping[str, Capsule], hold: Callable[[str], None]) -> None:
    """The journal is as the engine left it."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """See above. ``fail``: boundaries at which the disk is full, in the first run only.

    ``until_then``: the scenario that passes the same boundaries in the same state until it fails; there they are met.
    """

    command: Step
    prepare: Step = nothing
    craft: Craft = leave_alone
    before: Step = nothing
    phases: frozenset[str] = frozenset({"command"})
    fail: tuple[str, ...] = ()
    until_then: str = ""
    again: Step | None = None  # the command repeated afterwards, where that is another step

    @property
    def repeat(self) -> Step:
        """The same command once more."""
        return self.again or self.command


async def two_generations(hands: Hands) -> None:
    """An environment with a published write, at rest."""
    await hands.create("shop")
    await hands.write("shop", f"1.{hands.capsule('shop').actions}")
    await hands.snapshot("shop")


async def three_generations(hands: Hands) -> None:
    """One of them may go."""
    await two_generations(hands)
    await hands.write("shop", "2")
    await hands.snapshot("shop")


async def brought(hands: Hands) -> None:
    """The same, and the three generations of another journal's shop in a file."""
    await two_generations(hands)
    async with hands.elsewhere() as others:
        await three_generations(others)
        await others.export("shop")


async def imported(hands: Hands) -> None:
    """It is taken in."""
    await hands.import_("copy", [], ["shop 1.0"], ["shop 1.0", "shop 2"])


async def ended(hands: Hands) -> None:
    """The same, of an environment of which only the history is left."""
    await three_generations(hands)
    await hands.retire("shop")


async def a_tail(hands: Hands) -> None:
    """It serves, and holds what no generation has."""
    await hands.kernel.activate("shop")
    await hands.write("shop", "2")


async def bound(hands: Hands) -> None:
    """It serves, and nothing was written."""
    await hands.kernel.activate("shop")


async def retired(hands: Hands) -> None:
    """Only its history is left."""
    await two_generations(hands)
    await hands.retire("shop")


@asynccontextmanager
async def leased(hands: Hands, until: anyio.Event) -> AsyncIterator[None]:
    """Another holds a lease on the shop around the body: until the event, or until it is cut off."""
    held = anyio.Event()

    async def hold() -> None:
        with suppress(LeaseRevoked):
            async with hands.kernel.lease("shop", "a slow reader"):
                held.set()
                await until.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await held.wait()
        yield


async def snapshot_refused(hands: Hands) -> None:
    """Whoever reads does not let go in time."""
    let_go = anyio.Event()
    async with leased(hands, let_go):
        await hands.refused(hands.snapshot("shop", AT_ONCE), "drain_timeout")
        let_go.set()


async def reset_under_load(hands: Hands) -> None:
    """Whoever reads is cut off."""
    let_go = anyio.Event()
    async with leased(hands, let_go):
        await hands.reset("shop", REVOKE)
        let_go.set()  # where the command was given before, and nobody had to be cut off


async def fork_while_draining(hands: Hands) -> None:
    """The parent's reset waits for a lease while a child of its past is born."""
    let_go, over = anyio.Event(), anyio.Event()

    async def reset() -> None:
        await hands.reset("shop", PATIENT)
        over.set()

    async with leased(hands, let_go), anyio.create_task_group() as tasks:
        tasks.start_soon(reset)
        while hands.capsule("shop").transition is None and not over.is_set():
            await anyio.lowlevel.checkpoint()
        await hands.fork(SHOP_1, ["child"])
        let_go.set()


async def aborted(hands: Hands, work: Awaitable[object]) -> None:
    await hands.refused(work, "transition_aborted")


async def orphans(hands: Hands) -> None:
    """A branch and a version that nobody knows of, of both stores."""
    await a_tail(hands)
    for name in ("db", "media"):
        resource = hands.resource(name)
        base = hands.capsule("shop").generations[1].manifest[name].sealed
        branch = await resource.branch(base, Owner(env="stray", epoch=1))
        place = hands.assembled.state / str(branch.data["path"])
        if name == "media":
            (place / FOLDER / "stray").write_text("stray")
            await resource.quiesce(branch)
            await resource.seal(branch)
            await resource.thaw(branch)


async def collected(hands: Hands) -> None:
    report = await hands.kernel.collect()
    assert not report.failed, report


async def reset_parked(hands: Hands) -> None:
    await hands.reset("shop")


async def several_at_once(hands: Hands) -> None:
    """What an engine does on a busy day: everything below is under way together."""
    await hands.kernel.activate("shop")
    await hands.write("shop", "2")
    await hands.create("other")
    await hands.write("other", "1")


async def in_parallel(hands: Hands) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hands.snapshot, "shop")
        tasks.start_soon(hands.reset, "other")
        tasks.start_soon(hands.create, "third")


# --- legal states that this engine does not leave behind, because it appends them in one piece ------------------------

_AT = 1_700_000_000.0
_LEFT: dict[str, tuple[Operation, bool, bool]] = {  # environment -> operation, whether it serves, whether it is drained
    "staging-snapshot": ("snapshot", True, True),
    "staging-reset": ("reset", True, True),
    "staging-restore": ("restore", True, True),
    "shifting-reset": ("reset", False, True),
    "shifting-restore": ("restore", False, False),
    "recovering": ("recover", True, False),
}


async def several_at_rest(hands: Hands) -> None:
    """One environment for each state."""
    for env in _LEFT:
        await hands.create(env)
        await hands.write(env, "1")
        await hands.snapshot(env)
        await hands.park(env)


async def leave_half_way(journal: Journal, capsules: Mapping[str, Capsule], hold: Callable[[str], None]) -> None:
    """Each environment in a phase of its own, where it got a child; and one that is only named."""
    for env, (op, serving, drained) in _LEFT.items():
        capsule, version = capsules[env], await journal.stream_version(f"env/{env}")
        events: list[Event] = []
        if serving:
            number, probed = capsule.activation + 1, dict.fromkeys(capsule.head.manifest, 1.0)
            events.append(
                EnvironmentActivated(
                    at=_AT, env=env, generation=capsule.generation, activation=number, probed_ms=probed
                )
            )
        name = f"{env}/{version + len(events) + 1}"
        source = None if op == "snapshot" else Moment(env=env, generation=2 if op == "recover" else 1)
        begun = TransitionBegun(at=_AT, env=env, transition=name, op=op, base=capsule.generation, source=source)
        events.append(begun)
        if drained:
            events.append(TransitionDrained(at=_AT, env=env, transition=name))
        for event in events:
            await journal.append(Append(f"env/{env}", (event,)))
        hold(f"{env}-child@1")
        await journal.append(*_birth(capsule, f"{env}-child"))
    first = Moment(env="named", generation=1)
    named = EnvironmentCreated(at=_AT, env="named", contract=capsule.contract, how="create", origin=first)
    await journal.append(Append("env/named", (named,)))


def _birth(parent: Capsule, child: str) -> tuple[Append, Append]:
    """A child of the parent's first generation, which holds nothing, told to both."""
    generation = parent.generations[1]
    source = Moment(env=parent.env, generation=1)
    created = EnvironmentCreated(
        at=_AT, env=child, contract=parent.contract, how="fork", parent=source, origin=parent.origin
    )
    begun = TransitionBegun(at=_AT, env=child, transition=f"{child}/1", op="fork", base=0, source=source)
    published = GenerationPublished(
        at=_AT,
        env=child,
        transition=f"{child}/1",
        op="fork",
        generation=1,
        epoch=1,
        contract=parent.contract,
        manifest=dict(generation.manifest),
        source=source,
    )
    told = EnvironmentForked(at=_AT, env=parent.env, generation=1, child=child, how="fork")
    return Append(f"env/{child}", (created, begun, published)), Append(f"env/{parent.env}", (told,))


SCENARIOS: dict[str, Scenario] = {
    "first opening": Scenario(command=lambda h: h.create("shop"), phases=frozenset({"opening", "command"})),
    "create": Scenario(prepare=two_generations, command=lambda h: h.create("child")),
    "create, unbound": Scenario(prepare=two_generations, command=lambda h: h.create("child", activate=False)),
    "create that fails": Scenario(
        prepare=two_generations,
        command=lambda h: aborted(h, h.create("child")),
        again=lambda h: h.create("child"),
        fail=("after branch of media for child #1",),
        until_then="create",
    ),
    "snapshot": Scenario(prepare=two_generations, before=a_tail, command=lambda h: _one(h.snapshot("shop"))),
    "snapshot, refused": Scenario(
        prepare=two_generations,
        before=a_tail,
        command=snapshot_refused,
        again=lambda h: _one(h.snapshot("shop")),
    ),
    "snapshot that fails": Scenario(
        prepare=two_generations,
        before=a_tail,
        command=lambda h: aborted(h, h.snapshot("shop")),
        again=lambda h: _one(h.snapshot("shop")),
        fail=("after seal of media for shop #1",),
        until_then="snapshot",
    ),
    "reset": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.reset("shop")),
    "reset, parked": Scenario(prepare=two_generations, command=reset_parked),
    "reset under load": Scenario(prepare=two_generations, before=a_tail, command=reset_under_load),
    "reset that fails": Scenario(
        prepare=two_generations,
        before=a_tail,
        command=lambda h: aborted(h, h.reset("shop")),
        again=lambda h: h.reset("shop"),
        fail=("before bind of media for shop #1",),
        until_then="reset",
    ),
    "restore": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.restore("shop", 2)),
    "restore, parked": Scenario(prepare=two_generations, command=lambda h: h.restore("shop", 1)),
    "restore that fails": Scenario(
        prepare=two_generations,
        before=a_tail,
        command=lambda h: aborted(h, h.restore("shop", 1)),
        again=lambda h: h.restore("shop", 1),
        fail=("before probe of media for shop #1",),
    ),
    "fork": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.fork("shop", ["left", "right"])),
    "fork, parked": Scenario(prepare=two_generations, command=lambda h: h.fork("shop", ["child"])),
    "fork, many unbound": Scenario(
        prepare=two_generations,
        before=a_tail,
        command=lambda h: h.fork("shop", [f"child-{number}" for number in range(1, 6)], activate=False),
    ),
    "fork of what has ended": Scenario(prepare=retired, command=lambda h: h.fork(SHOP_1, ["child"])),
    "fork while draining": Scenario(prepare=two_generations, before=a_tail, command=fork_while_draining),
    "clone": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.clone("shop", "copy")),
    "fork that fails": Scenario(
        prepare=two_generations,
        command=lambda h: aborted(h, h.fork(SHOP_1, ["child"])),
        again=lambda h: h.fork(SHOP_1, ["child"]),
        fail=("after bind of db for child #1",),
        until_then="fork, parked",
    ),
    "clone that fails": Scenario(
        prepare=two_generations,
        before=a_tail,
        command=lambda h: aborted(h, h.clone("shop", "copy")),
        again=lambda h: h.clone("shop", "copy"),
        fail=("before branch of db for copy #1",),
        until_then="clone",
    ),
    "recover": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.recover("shop")),
    "park": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.park("shop")),
    "park, clean": Scenario(prepare=two_generations, before=bound, command=lambda h: h.park("shop")),
    "activate": Scenario(prepare=two_generations, command=lambda h: h.kernel.activate("shop")),
    "activate that fails": Scenario(
        prepare=two_generations,
        command=lambda h: aborted(h, h.kernel.activate("shop")),
        again=lambda h: h.kernel.activate("shop"),
        fail=("after branch of media for shop #1",),
        until_then="activate",
    ),
    "retire": Scenario(prepare=two_generations, before=a_tail, command=lambda h: h.retire("shop")),
    "retire, parked": Scenario(prepare=two_generations, command=lambda h: h.retire("shop")),
    "mark and prune": Scenario(prepare=three_generations, before=bound, command=lambda h: h.tend("shop")),
    "mark and prune, parked": Scenario(prepare=three_generations, command=lambda h: h.tend("shop")),
    "mark and prune what has ended": Scenario(prepare=ended, command=lambda h: h.tend("shop")),
    "keep": Scenario(prepare=two_generations, before=bound, command=lambda h: h.keep("shop")),
    "keep, parked": Scenario(prepare=two_generations, command=lambda h: h.keep("shop")),
    "import": Scenario(prepare=brought, before=a_tail, command=imported),
    "import that fails": Scenario(
        prepare=brought,
        command=lambda h: h.refused(imported(h), "resource_failed"),
        again=imported,
        fail=("on disk: before write importing/-*/tree #1",),
    ),
    "collect": Scenario(prepare=two_generations, before=orphans, command=collected),
    "several at once": Scenario(prepare=two_generations, before=several_at_once, command=in_parallel),
    "close": Scenario(prepare=two_generations, before=several_at_once, command=nothing, phases=frozenset({"closing"})),
    "left half-way": Scenario(
        prepare=several_at_rest, craft=leave_half_way, command=nothing, phases=frozenset({"opening"})
    ),
}


async def _one(work: Awaitable[object]) -> None:
    await work
