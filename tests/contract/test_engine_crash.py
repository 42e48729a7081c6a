"""A crash at any moment: reopening gives the old or the new generation, whole; nothing is left over, nothing hidden.

One run of a scenario is photographed at every call of a resource and around every commit: what is on disk, and what
exists in the world. Each photograph is then opened as the state that a crash at that moment would have left.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import anyio
import pytest
import sniffio

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.forking import Forks
from statefork.adapters.resources.memory import Call
from statefork.engine.capsule import Phase
from statefork.engine.kernel import Kernel
from statefork.engine.refs import parse_ref
from statefork.engine.world import World
from statefork.journal.blobs import MemoryBlobs
from statefork.journal.codec import Codec
from statefork.journal.events import (
    ActionBegun,
    EnvironmentForked,
    GenerationPublished,
    OrphanCollected,
    RecoveryFinished,
)
from statefork.journal.memory import MemoryDisk
from statefork.journal.values import Branch, Moment, Sealed
from tests.contract.engine_kit import House, Later, Pause, put

pytestmark = pytest.mark.anyio


class Photo:
    """What a crash at this moment leaves, and what had been promised by then."""

    def __init__(self, house: House, taken: str, promised: list[Moment]) -> None:
        self.taken = taken
        self.promised = list(promised)
        self.rows = list(house.disk.rows)
        self.synced = house.disk.synced
        self.world = house.world.survivors()

    @property
    def state(self) -> tuple[object, ...]:
        """Equal for photographs that show the same."""
        world = self.world
        contents = {name: (one.content, one.writes) for name, one in world.branches.items()}
        return len(self.rows), self.synced, str(contents), tuple(world.versions), tuple(world.bindings)

    def house(self, *, keep_riders: bool) -> House:
        """A house in that state; events that nobody waited for may have reached the disk or not."""
        house = House()
        house.disk = MemoryDisk()
        house.disk.rows = self.rows if keep_riders else self.rows[: self.synced]
        house.disk.synced = len(house.disk.rows)
        house.world = self.world.survivors()
        return house


class Scenario:
    """Writes pairs of witnesses into both stores, so that a mixture would be seen."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.photos: list[Photo] = []
        self.promised: list[Moment] = []

    async def call(self, call: Call) -> None:
        self.photos.append(Photo(self.house, f"{call.when} {call.method} of {call.resource}", self.promised))

    async def before_commit(self) -> None:
        self.photos.append(Photo(self.house, "before commit", self.promised))

    async def after_commit(self) -> None:
        self.photos.append(Photo(self.house, "after commit", self.promised))

    async def write(self, kernel: Kernel, env: str, witness: str) -> None:
        for store in ("db", "media"):
            await put(kernel, env, "witness", f"{env} {witness}", where=store)

    async def run(self, kernel: Kernel) -> None:
        self.promised.append(await kernel.create("shop"))
        await self.write(kernel, "shop", "one")
        self.promised.append(await kernel.snapshot("shop"))
        await self.write(kernel, "shop", "two")
        results = await kernel.fork("shop", ["child"])
        self.promised.extend(result.moment for result in results if result.moment is not None)
        await self.write(kernel, "child", "three")
        self.promised.append(await kernel.reset("child"))
        self.promised.append(await kernel.restore("shop", Moment(env="shop", generation=2)))
        await self.write(kernel, "shop", "four")
        await kernel.park("shop")
        self.promised.append(kernel.environments["shop"].moment)
        self.promised.append(await kernel.clone("shop", "copy"))
        await kernel.retire("child")
        await self.write(kernel, "shop", "five")


def world_of(house: House) -> World:
    """The fold of what survived, before anybody repairs it."""
    world, codec = World(), Codec()
    for position, row in enumerate(house.disk.rows, 1):
        world.apply(codec.decode(row.event, position=position))
    return world


async def reopen(photo: Photo, *, keep_riders: bool) -> None:
    house = photo.house(keep_riders=keep_riders)
    before = world_of(house)
    async with house.open(audited=False) as kernel:  # the second audit is of all that is written here, too
        note = f"{photo.taken}, riders {'kept' if keep_riders else 'lost'}"
        assert house.unreached(kernel) == [], note
        for moment in photo.promised:
            assert kernel.world.generation(moment), note
        for env, capsule in kernel.environments.items():
            assert capsule.phase in (Phase.PARKED, Phase.RETIRED), note
            assert capsule.transition is None, note
            old = before.environments[env]
            assert capsule.generation >= old.generation > 0, note
            if old.phase not in (Phase.PARKED, Phase.RETIRED, Phase.SHIFTING):
                assert capsule.head.op == "recover", note
                assert capsule.head.manifest == old.head.manifest, note
                assert capsule.head.lost_actions == tuple(range(old.head.actions + 1, old.actions + 1)), note
                assert kernel.recovered.lost[env] == capsule.head.lost_actions, note
        await look(house, kernel, note)
    repaired = len(house.disk.rows)
    async with house.open() as kernel:
        assert kernel.recovered.clean, "what was repaired once stays repaired"
    later = [Codec().decode(row.event) for row in house.disk.rows[repaired:]]
    assert not [event for event in later if isinstance(event, EnvironmentForked | GenerationPublished)], note


async def look(house: House, kernel: Kernel, note: str) -> None:
    """Every environment can be used, and shows no mixture."""
    for env, capsule in kernel.environments.items():
        if capsule.phase is Phase.RETIRED:
            continue
        await kernel.activate(env)
        db, media = house.content(kernel, env), house.content(kernel, env, "media")
        assert db.get("witness") == media.get("witness"), note
        assert db == house.sealed(kernel, env, capsule.generation), note
        await put(kernel, env, "after", True)


async def test_a_crash_at_every_moment() -> None:
    house = House()
    scenario = Scenario(house)
    async with house.open(
        hook=scenario.call, before_commit=scenario.before_commit, after_commit=scenario.after_commit
    ) as kernel:
        await scenario.run(kernel)
    different = list({photo.state: photo for photo in scenario.photos}.values())
    assert len(scenario.photos) > 500
    assert len(different) > 100
    # The photographs are the same on both loops but for the order of what runs side by side.
    step = 1 if sniffio.current_async_library() == "trio" else 5
    for photo in different[::step]:
        await reopen(photo, keep_riders=False)
        if photo.synced < len(photo.rows):
            await reopen(photo, keep_riders=True)


async def test_a_crash_during_recovery_is_recovered() -> None:
    house = House()
    scenario = Scenario(house)
    async with house.open() as kernel:
        await kernel.create("shop")
        await kernel.create("other")
        await scenario.write(kernel, "shop", "one")
        photo = Photo(house, "while serving", [])
    again = photo.house(keep_riders=True)
    second = Scenario(again)
    async with again.open(hook=second.call, before_commit=second.before_commit, after_commit=second.after_commit):
        pass
    for later in second.photos:
        await reopen_again(later)


async def reopen_again(photo: Photo) -> None:
    house = photo.house(keep_riders=False)
    async with house.open() as kernel:
        assert house.unreached(kernel) == [], photo.taken
        for capsule in kernel.environments.values():
            assert (capsule.phase, capsule.generation) == (Phase.PARKED, 2), photo.taken
        await look(house, kernel, photo.taken)


async def test_recovery_says_what_it_found_and_did() -> None:
    house = House()
    pause = Pause("page", "bind")
    async with house.open() as kernel, anyio.create_task_group() as tasks:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        await kernel.snapshot("shop")
        await put(kernel, "shop", "a", 2)
        tasks.start_soon(kernel.act, "shop", {"type": "wait", "key": "never"})
        house.world.hook = pause
        tasks.start_soon(kernel.create, "half")
        await pause.reached.wait()
        photo = Photo(house, "in the middle", [])
        house.world.signal("never")
        pause.go_on.set()
    assert "half" in world_of(photo.house(keep_riders=True)).environments
    crashed = photo.house(keep_riders=True)
    async with crashed.open() as kernel:
        report = kernel.recovered
        assert report.recovered == (Moment(env="shop", generation=3),)
        assert report.lost == {"shop": (2, 3)}
        assert [name.partition("/")[0] for name in report.settled] == ["half"]
        assert "half" not in kernel.environments
        assert report.orphans == len(await crashed.events(OrphanCollected)) > 0
        (*_, finished) = await crashed.events(RecoveryFinished)
        assert (finished.recovered, finished.settled, finished.orphans) == (
            report.recovered,
            report.settled,
            report.orphans,
        )
        assert str(await kernel.create("half")) == "half@1"


async def test_only_what_bears_this_journal_is_collected() -> None:
    house = House()
    async with house.open() as kernel:
        await kernel.create("shop")
        stray = Sealed(journal="memory", resource="db", adapter="memory", version="db-v999")
        foreign = Sealed(journal="another", resource="db", adapter="memory", version="db-v1000")
        branch = Branch(journal="memory", resource="db", adapter="memory", id="db-b999", env="x", epoch=1, base="?")
        house.world.versions |= {stray.version: stray, foreign.version: foreign}
        namespace = copy.copy(next(iter(house.world.branches.values())))
        namespace.handle = branch
        house.world.branches[branch.id] = namespace
        report = await kernel.collect()
        assert [(one.kind, one.name) for one in report.collected] == [("branch", "db-b999"), ("sealed", "db-v999")]
        assert foreign.version in house.world.versions
        del house.world.versions[foreign.version]


async def test_a_collection_waits_for_what_is_being_staged() -> None:
    house = House()
    pause = Pause("page", "bind")
    async with house.open(hook=pause) as kernel, anyio.create_task_group() as tasks:
        tasks.start_soon(kernel.create, "shop")
        await pause.reached.wait()
        collection = Later(kernel.collect)
        tasks.start_soon(collection)
        collection.go()
        await anyio.wait_all_tasks_blocked()
        pause.go_on.set()
        await collection.done()
        assert kernel.environments["shop"].phase is Phase.SERVING
        await put(kernel, "shop", "a", 1)


async def test_a_crash_over_a_sqlite_journal(tmp_path: Path) -> None:
    house = House(tmp_path / "first" / "journal.sqlite3")
    async with house.open() as kernel:
        await kernel.create("shop")
        await put(kernel, "shop", "a", 1)
        await kernel.snapshot("shop")
        await put(kernel, "shop", "a", 2)
        assert house.journal is not None
        await house.journal.flush()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        world = house.world.survivors()
    crashed = House(tmp_path / "second" / "journal.sqlite3")
    crashed.world = world
    async with crashed.open() as kernel:
        assert kernel.recovered.lost == {"shop": (2,)}
        assert [event.number for event in await crashed.events(ActionBegun)] == [1, 2]
        assert (await put(kernel, "shop", "b", 3)).number == 2
        assert crashed.content(kernel, "shop") == {"greeting": "hello", "a": 1, "b": 3}


@pytest.mark.parametrize("parked", [False, True])
async def test_what_was_of_use_to_a_command_alone_ends_with_it(parked: bool) -> None:
    """A restore to a moment that nobody sealed was cut off after that was made; given again it is done."""
    house = House()
    async with house.open() as kernel:
        assert house.journal is not None
        forks = Forks(kernel, house.journal, MemoryBlobs())
        await kernel.create("shop")
        await put(kernel, "shop", "one", 1)
        await put(kernel, "shop", "two", 2)
        async with forks.standing(parse_ref("shop#1")) as standing:
            if parked:
                await kernel.park(standing.moment.env)
            photo = Photo(house, "in the middle", [])
    crashed = photo.house(keep_riders=True)
    assert world_of(crashed).environments["shop-d1"].phase is (Phase.PARKED if parked else Phase.SERVING)
    async with crashed.open() as kernel:
        report = kernel.recovered
        assert [(one.env, one.helped) for one in report.released] == [("shop-d1", "making shop#1")]
        assert "shop-d1 was there for making shop#1, and what wanted that is gone: it is retired" in [*report.lines()]
        assert kernel.environments["shop-d1"].phase is Phase.RETIRED
        assert not report.clean
        (*_, finished) = await crashed.events(RecoveryFinished)
        assert isinstance(finished, RecoveryFinished)
        assert finished.retired == ("shop-d1",)
        assert crashed.journal is not None
        shop = Environment(kernel, MemoryBlobs(), "shop", Forks(kernel, crashed.journal, MemoryBlobs()))
        first = await shop.restore("shop@1+1", key="k")
        assert await shop.restore("shop@1+1", key="k") == first
    async with crashed.open() as kernel:
        assert kernel.recovered.clean
