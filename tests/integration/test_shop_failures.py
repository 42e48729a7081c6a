"""Case 6 and 13 on the real shop: a reset, restore or fork that fails half-way leaves the old generation serving.

Nothing is pretended: what the transition needs is taken from the disk or damaged there, the disk is full, or Chromium
stands still. Nothing staged stays, the error says what failed, and the same command works when the cause is gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.browser.actions import Fill
from statefork.engine.capsule import Generation, Phase
from statefork.engine.errors import ObservationLost, PartialFork, ResourceFailed, StateforkError, TransitionAborted
from statefork.engine.settings import Settings
from statefork.journal import events as happened
from statefork.journal.errors import JournalUnavailable
from statefork.journal.values import Moment
from statefork.replay.auditing import audit
from statefork.worlds.shop import agents, evaluators
from statefork.worlds.shop.build import cached
from tests.integration.shop_kit import chromium, contexts, events, filled, judged, needs_shop, open_shop, shopper

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.shop,
    pytest.mark.browser,
    pytest.mark.timeout(600),
    needs_shop,
]

OPERATIONS = ("snapshot", "reset", "restore", "fork")
Damage = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


# --- what is done to the disk -----------------------------------------------------------------------------------


@contextmanager
def removed(path: Path) -> Iterator[None]:
    """Not there for a while."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


@contextmanager
def overwritten(path: Path, content: Callable[[bytes], bytes]) -> Iterator[None]:
    """Other bytes for a while."""
    whole = path.read_bytes()
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(content(whole))
    try:
        yield
    finally:
        path.write_bytes(whole)
        path.chmod(mode)


def garbage(path: Path) -> AbstractContextManager[None]:
    """The first page is noise."""
    return overwritten(path, lambda whole: bytes(range(256)) * 16 + whole[4096:])


def halved(path: Path) -> AbstractContextManager[None]:
    """The second half was never written."""
    return overwritten(path, lambda whole: whole[: len(whole) // 2])


DAMAGES: dict[str, tuple[str, Damage]] = {
    "a database that is gone": ("db", removed),
    "a database that is noise": ("db", garbage),
    "half a database": ("db", halved),
    "a file tree that is gone": ("media", removed),
    "a profile that is gone": ("browser", removed),
    "half a profile": ("browser", halved),
}


def place(engine: Engine, name: str, generation: Generation) -> Path:
    """Where a component of a generation lies on disk."""
    sealed = generation.manifest[name].sealed
    if "path" in sealed.data:
        return engine.state / str(sealed.data["path"])
    root = engine.state / "resources" / name
    record = msgspec.json.decode((root / "sealed" / f"{sealed.version}.json").read_bytes())
    return Path(root / "layers" / record["layers"][0])


# --- what there is ----------------------------------------------------------------------------------------------


async def everything(engine: Engine) -> dict[str, object]:
    """All that a transition could leave behind: handles, browser contexts, open ports, entries on the disk."""
    open_contexts = await contexts(engine)  # first: it closes what is made in advance, with its port
    handles = {
        name: sorted([str(handle) async for handle in resource.inventory()])
        for name, resource in engine.kernel.resources.items()
    }
    ports = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    entries = sorted(str(path.relative_to(engine.state)) for path in (engine.state / "resources").glob("*/*/*"))
    return {"handles": handles, "contexts": open_contexts, "ports": len(ports), "entries": entries}


async def type_name(env: Environment, name: str) -> None:
    """An action of the agent, on the page that it had."""
    await env.act(Fill(selector="#id_first_name", value=name))
    async with env.page() as page:
        assert await page.locator("#id_first_name").input_value() == name
        assert await page.locator("#id_line1").input_value() == agents.NEW_ADDRESS["line1"]


async def aborted(work: Callable[[], Awaitable[object]]) -> TransitionAborted:
    """The error of a transition that has to fail; of a fork that of its one child."""
    with pytest.raises((TransitionAborted, PartialFork)) as caught:
        await work()
    if isinstance(caught.value, PartialFork):
        assert caught.value.born == ()
        (error,) = caught.value.failed.values()
    else:
        error = caught.value
    assert isinstance(error, TransitionAborted), error
    return error


class Scene:
    """An environment in the middle of a checkout, with a published generation there and a tail after it."""

    def __init__(self, engine: Engine, env: Environment) -> None:
        self.engine = engine
        self.env = env
        self.agent = shopper(env)
        self.children = 0

    async def begin(self) -> None:
        """Generation 2 is the checkout."""
        await agents.begin_checkout(self.agent)
        media = Path(str(self.env.bindings["media"].address["path"]))
        (media / "witness.txt").write_text("kept")
        self.kept = await self.env.snapshot()

    async def snapshot(self) -> object:
        """Of where it is."""
        return await self.env.snapshot()

    async def reset(self) -> object:
        """Back to the origin."""
        return await self.env.reset()

    async def restore(self) -> object:
        """Back to the checkout."""
        return await self.env.restore(self.kept)

    async def fork(self) -> object:
        """A child of the checkout: always of the same name while it fails."""
        return await self.engine.fork(self.kept, names=[f"child-{self.children}"])

    def command(self, op: str) -> Callable[[], Awaitable[object]]:
        """The one of that name."""
        found: Callable[[], Awaitable[object]] = getattr(self, op)
        return found

    async def in_checkout(self) -> None:
        """Wherever a transition that worked led to: back to where the next one begins."""
        if self.env.capsule.head.op == "reset":
            await self.env.restore(self.kept)
        name = f"child-{self.children}"
        if name in self.engine.capsules:
            child = self.engine.environment(name)
            assert (await judged(child, evaluators.in_mid_checkout, self.agent)).failed == ()
            await child.retire()
            self.children += 1


async def test_what_fails_half_way_leaves_the_old_generation_serving(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as engine:
        scene = Scene(engine, await engine.create("env"))
        await scene.begin()
        for op in ("reset", "restore", "fork"):
            target = scene.env.capsule.origin if op == "reset" else engine.moment(scene.kept)
            for name, (component, damage) in DAMAGES.items():
                await type_name(scene.env, f"before {op}, {name}")
                before = await everything(engine)
                with damage(place(engine, component, engine.kernel.world.generation(target))):
                    await fails_half_way(scene, op, component, target)
                    await type_name(scene.env, f"after {op}, {name}")
                assert await everything(engine) == before
                with anyio.fail_after(60):
                    await scene.command(op)()
                await scene.in_checkout()
        await agents.finish_to_own_address(scene.agent)
        wanted = evaluators.ordered(delivery="Bicycle", quantity=1)
        assert (await judged(scene.env, wanted, scene.agent)).failed == ()
    assert audit(tmp_path).clean


async def fails_half_way(scene: Scene, op: str, component: str, target: Moment) -> None:
    """The error and the journal say what failed, and the old generation stays."""
    env, old = scene.env, scene.env.capsule.moment
    error = await aborted(scene.command(op))
    facts = error.facts
    named = (env.name, old.generation) if op != "fork" else (f"child-{scene.children}", 0)
    assert (facts["environment"], facts["generation"]) == named, error
    assert (facts["operation"], facts["component"]) == (op, component), error
    assert facts["source"] == str(target), error
    reason = str(facts["reason"]).removeprefix(f"{component}: ")
    assert reason, error
    for told in (env.name, component, str(target), reason):
        assert told in str(error)
    assert env.capsule.moment == old
    noted = await events(scene.engine, str(facts["environment"]), happened.TransitionAborted)
    assert isinstance(noted[-1], happened.TransitionAborted)
    assert (noted[-1].component, noted[-1].op) == (component, op)


@pytest.mark.root
async def test_a_disk_with_too_little_room_for_the_next_generation(shop_disk: Path) -> None:
    async with open_shop(shop_disk / "state") as engine:
        scene = Scene(engine, await engine.create("env"))
        env = scene.env
        await scene.begin()
        for op in OPERATIONS:
            await type_name(env, f"before {op}")
            write_row(env, op)
            old = env.capsule.moment
            before = await everything(engine)
            command = scene.command(op)
            with filled(shop_disk, leave_bytes=ROOM_FOR_THE_JOURNAL):
                error = await aborted(command)
                assert error.facts["operation"] == op, error
                assert error.facts["component"] in {"db", "media", "search", "browser"}, error  # who meets it first
                assert "No space left on device" in str(error.facts["reason"])
                assert "Free space" in str(error)
                assert env.capsule.moment == old
                await type_name(env, "meanwhile")
            assert await everything(engine) == before
            with anyio.fail_after(60):
                await command()
            await scene.in_checkout()
            await type_name(env, "after")
    assert audit(shop_disk / "state").clean


def write_row(env: Environment, witness: str) -> None:
    """So that a snapshot has a database to seal."""
    with closing(sqlite3.connect(str(env.bindings["db"].address["path"]))) as connection, connection:
        connection.execute("UPDATE auth_user SET last_name = ?", (witness,))


ROOM_FOR_THE_JOURNAL = 700 * 1024  # and for an observation or two; a database of the shop needs twice as much


@pytest.mark.root
async def test_a_full_disk_loses_nothing(shop_disk: Path) -> None:
    state = shop_disk / "state"
    async with open_shop(state) as engine:
        scene = Scene(engine, await engine.create("env"))
        await scene.begin()
        env, old = scene.env, scene.env.capsule.moment
        before = await everything(engine)
        with filled(shop_disk, leave_bytes=0):
            with pytest.raises(ObservationLost, match=r"was carried out.*No space left on device.*look before") as lost:
                await env.act(Fill(selector="#id_first_name", value="unseen"))
            for command in (env.snapshot, scene.reset, scene.restore, scene.fork, env.park):
                with pytest.raises(StateforkError, match=r"disk.* is full.*Free space"):
                    await command()
            assert (env.capsule.moment, env.capsule.phase) == (old, Phase.SERVING)
        assert await everything(engine) == before
        async with env.page() as page:
            assert await page.locator("#id_first_name").input_value() == "unseen"
        ended = await events(engine, "env", happened.ActionEnded)
        outcomes = {event.number: event.outcome for event in ended if isinstance(event, happened.ActionEnded)}
        assert outcomes[lost.value.facts["action"]] == "unknown"
        for command in (env.snapshot, scene.reset, scene.restore, scene.fork):
            await command()
    with filled(shop_disk, leave_bytes=0), pytest.raises(JournalUnavailable, match="The disk is full"):
        async with open_shop(state):
            pass
    async with open_shop(state) as engine:
        assert engine.recovered.clean
        await scene_again(engine)
    assert audit(state).clean


async def scene_again(engine: Engine) -> None:
    """The checkout and its child are as they were left."""
    for name in ("env", "child-0"):
        env = engine.environment(name)
        assert (await judged(env, evaluators.in_mid_checkout, shopper(env))).failed == ()


@pytest.mark.root
async def test_a_disk_without_room_for_the_base(shop_disk: Path) -> None:
    state = shop_disk / "state"
    cached(lambda fraction, text: None)
    with filled(shop_disk, leave_bytes=1 << 20):
        with pytest.raises(ResourceFailed, match=r"the bases of 'shop'.*No space left on device") as caught:
            async with open_engine("shop", state=state):
                pass
        assert "Make room" in caught.value.hint
        assert not await anyio.to_thread.run_sync(list, (state / "worlds").iterdir())
    async with open_engine("shop", state=state) as engine:
        await engine.create("env")


async def test_a_chromium_that_stands_still_opens_no_context(tmp_path: Path) -> None:
    settings = Settings(seal_s=8.0, stage_s=8.0, discard_s=4.0)
    async with open_shop(tmp_path, settings=settings) as engine:
        scenes = {op: Scene(engine, await engine.create(f"env-{op}")) for op in OPERATIONS}
        for op, scene in scenes.items():
            await scene.begin()
            await type_name(scene.env, f"before {op}")
        old = {op: scene.env.capsule.moment for op, scene in scenes.items()}
        before = await everything(engine)

        async def tried(op: str) -> None:
            error = await aborted(scenes[op].command(op))
            assert (error.facts["operation"], error.facts.get("component", "")) == (op, "browser"), error
            assert "8 s" in str(error)

        with stopped(chromium(engine)), anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for op in OPERATIONS:
                    tasks.start_soon(tried, op)
        assert {op: scene.env.capsule.moment for op, scene in scenes.items()} == old
        for op, scene in scenes.items():
            await type_name(scene.env, f"after {op}")
        with anyio.fail_after(30):
            while await everything(engine) != before:  # what Chromium made too late is closed when it goes on
                await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            for op, scene in scenes.items():
                await scene.command(op)()
                await scene.in_checkout()
    assert audit(tmp_path).clean


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP for a while."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()
