"""An engine goes on from a checkpoint of its fold: equal to the fold of everything, never believed when in doubt."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest

from statefork.engine import checkpoint
from statefork.engine.checkpoint import FOLD, fold
from statefork.engine.errors import InDoubt
from statefork.engine.kernel import Kernel
from statefork.engine.ledger import Ledger
from statefork.engine.stillness import Stillness
from statefork.engine.world import World
from statefork.journal.checkpoint import Checkpoint, Stored
from statefork.journal.errors import JournalUnavailable
from statefork.journal.events import BaseProvisioned
from statefork.journal.log import Append, Journal, Recorded
from statefork.journal.memory import MemoryDisk, MemoryJournal, open_memory_journal
from statefork.journal.values import Component, Moment, Sealed
from statefork.replay.rebuild import differences, rebuild
from tests.contract.engine_kit import SETTINGS, SMALL, House, put

pytestmark = pytest.mark.anyio
OFTEN = msgspec.structs.replace(SETTINGS, checkpoint_events=12)
FILE = "journal.sqlite3"


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> House:
    return House(tmp_path / FILE if request.param == "sqlite" else None, contract=SMALL)


async def story(kernel: Kernel) -> None:
    """Of everything a little."""
    await kernel.create("shop")
    await put(kernel, "shop", "k", 1)
    await kernel.snapshot("shop", key="once")
    await kernel.fork("shop", ["left", "right"], activate=False, key="twice")
    await put(kernel, "left", "k", 2)
    await kernel.reset("shop")
    await kernel.restore("shop", Moment(env="shop", generation=2))
    await kernel.clone("left", "copy", activate=False)
    await kernel.park("left")
    await kernel.retire("right")
    for number in range(4):
        await put(kernel, "shop", "k", number)


async def told(house: House) -> list[Checkpoint]:
    """Every checkpoint that an engine makes during the story."""
    made: list[Checkpoint] = []
    async with house.open(settings=OFTEN) as kernel:
        journal = house.journal
        assert journal is not None
        save = journal.save_checkpoint

        async def noting(one: Checkpoint) -> None:
            await save(one)
            made.append(one)

        journal.save_checkpoint = noting  # type: ignore[method-assign]  # only to see what is kept
        await story(kernel)
    return made


async def begun(journal: Journal) -> tuple[World, int]:
    folded = await fold(journal)
    return folded.world, folded.begun


async def test_the_fold_from_any_checkpoint_is_the_fold_of_everything(house: House) -> None:
    made = await told(house)
    assert len(made) >= 3, "the story is long enough for several"
    async with house.open(settings=OFTEN) as kernel:
        assert house.journal is not None
        whole = await rebuild(house.journal)
        assert kernel.world.answers.keys() == {"once", "twice"}
        for one in made:
            await house.journal.save_checkpoint(one)
            world, position = await begun(house.journal)
            assert position == one.position
            assert differences(world, whole) == ()
            assert (world.answers, world.runs, world.provisioned) == (whole.answers, whole.runs, whole.provisioned)
            assert world.environments.awake == whole.environments.awake
            assert world.reachable() == whole.reachable()


async def test_only_what_is_behind_the_checkpoint_is_read(house: House) -> None:
    await told(house)
    read: list[int] = []
    async with house._journal(None, None) as journal:
        head = await journal.head()
        reading = journal.read

        def noting(*, after: int = 0, stream: str | None = None, limit: int | None = None) -> AsyncIterator[Recorded]:
            read.append(after)
            return reading(after=after, stream=stream, limit=limit)

        journal.read = noting  # type: ignore[method-assign]  # only to see what is read
        await fold(journal)
    assert read == [head], "a clean close has kept all of it"


async def test_what_was_kept_survives_a_crash_and_what_was_not_is_folded(house: House) -> None:
    await told(house)
    if house.path is not None:
        return  # the tests that kill processes do this with files
    async with house.open(settings=SETTINGS, check=False) as kernel:
        await put(kernel, "shop", "late", 1)
        assert house.journal is not None
        await house.journal.flush()
        house.disk.crash()
    async with house.open() as kernel:
        assert kernel.recovered.recovered == (Moment(env="shop", generation=kernel.environments["shop"].generation),)


def spoilt(house: House, how: str) -> None:
    """Something is wrong with the checkpoint that lies there."""
    if house.path is not None:
        file = house.path.with_name(f"{FILE}.{FOLD}.checkpoint")
        first, _, data = file.read_bytes().partition(b"\n")
        changed = {
            "damaged": first + b"\n" + data[:-9] + b"?" + data[-8:],
            "torn": (first + b"\n" + data)[:-5],
            "newer": first.replace(b'"format":1', b'"format":2') + b"\n" + data,
            "foreign": first.replace(b'"journal":"', b'"journal":"x') + b"\n" + data,
        }
        file.write_bytes(changed[how])
        return
    stored = house.disk.checkpoints[FOLD]
    house.disk.checkpoints[FOLD] = Stored(checkpoint=stored.checkpoint, journal="another", hash=stored.hash)


@pytest.mark.parametrize("how", ["damaged", "torn", "newer", "foreign"])
async def test_one_that_is_spoilt_is_said_and_not_used(
    house: House, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    await told(house)
    spoilt(house, how)
    await ignored(house, caplog)


async def ignored(house: House, caplog: pytest.LogCaptureFixture, why: str = "") -> None:
    """The next engine reads everything, and says so."""
    with caplog.at_level(logging.WARNING):
        async with house.open() as kernel:
            assert kernel.environments["shop"].generation >= 4
    (warning,) = [one.getMessage() for one in caplog.records if "is not used" in one.getMessage()]
    assert "read from its beginning" in warning
    assert why in warning


async def test_one_of_other_rules_is_said_and_not_used(
    house: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(checkpoint, "rules", lambda: "0.0/0/ffff")
        await told(house)
    await ignored(house, caplog, "made by other rules")


async def test_one_that_disagrees_with_the_journal_is_said_and_not_used(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """The event at its position is there, but some stream had another end."""
    made = await told(house)
    kept = msgspec.msgpack.decode(made[-1].data)
    lying = msgspec.msgpack.encode({**kept, "heads": "0" * 64})
    async with house._journal(None, None) as journal:
        await journal.save_checkpoint(Checkpoint(fold=FOLD, position=made[-1].position, data=lying))
    await ignored(house, caplog, "the heads of its streams differ")


async def test_one_whose_content_cannot_be_believed_is_no_reason_to_fail(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    made = await told(house)
    kept = msgspec.msgpack.decode(made[0].data)
    kept["image"]["packed"] = [b"\0nonsense" for _ in kept["image"]["packed"]]
    lying = msgspec.msgpack.encode(kept)
    async with house._journal(None, None) as journal:
        await journal.save_checkpoint(Checkpoint(fold=FOLD, position=made[0].position, data=lying))
    await ignored(house, caplog)


async def test_that_it_cannot_be_kept_is_said_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    house = House(contract=SMALL)

    async def full(_self: MemoryJournal, _checkpoint: Checkpoint) -> None:
        raise JournalUnavailable("the disk is full")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryJournal, "save_checkpoint", full)
        async with house.open(settings=OFTEN) as kernel:
            await story(kernel)
    assert "could not be kept, so the next opening reads more: the disk is full" in caplog.text
    assert "Traceback" not in caplog.text, "whoever runs the engine reads this in a terminal"
    assert house.disk.checkpoints == {}


async def test_a_cut_waits_for_what_is_under_way() -> None:
    """An event that is on the disk and not answered yet is not folded: an image taken now would lack it."""
    house = House(contract=SMALL)
    stalled, go_on = anyio.Event(), anyio.Event()
    armed = False

    async def stall() -> None:
        if armed and not stalled.is_set():
            stalled.set()
            await go_on.wait()

    async with house.open(after_commit=stall) as kernel:
        await kernel.create("first", activate=False)
        armed = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: kernel.create("second", activate=False))
            await stalled.wait()
            tasks.start_soon(kernel._ledger.save_checkpoint)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        stored = house.disk.checkpoints[FOLD].checkpoint
        assert house.journal is not None
        kept = World.of(msgspec.msgpack.decode(stored.data, type=checkpoint._Kept).image)
        assert differences(kept, await rebuild(house.journal, position=stored.position)) == ()


async def test_while_an_append_is_in_doubt_there_is_no_cut() -> None:
    still = Stillness()
    async with still.moving(), still.cut() as cut:
        assert not cut, "something is under way, and does not end"
    async with still.cut() as cut:
        assert cut
        with anyio.move_on_after(0.05) as late:
            async with still.moving():
                pass
        assert late.cancelled_caught, "nothing begins during a cut"
    still.give_up()
    async with still.cut() as cut:
        assert not cut


def provisioned(house: House, version: str) -> BaseProvisioned:
    sealed = Sealed(journal="memory", resource="db", adapter="memory", version=version)
    manifest = {"db": Component(sealed=sealed, durability="authoritative")}
    return BaseProvisioned(at=0.0, contract=house.contract.digest, manifest=manifest)


async def test_what_nobody_knows_ends_the_checkpoints_of_a_run_and_is_settled_later() -> None:
    """What may be in the journal is not in the fold, so the fold must not be kept for that position."""
    house = House(contract=SMALL)
    async with open_memory_journal(MemoryDisk()) as journal:
        ledger = await Ledger.load(journal, _Clock(), settle_s=0.05)
        await ledger.append_engine(provisioned(house, "v1"))
        assert await ledger.save_checkpoint()
        append = journal.append
        with pytest.MonkeyPatch.context() as patched:

            async def lost(*appends: Append, durable: bool = True) -> int:
                await append(*appends, durable=durable)
                raise JournalUnavailable("no reply")

            def unreadable(**_: object) -> AsyncIterator[Recorded]:
                raise JournalUnavailable("no answer")

            patched.setattr(journal, "append", lost)
            await ledger.append_engine(provisioned(house, "v2"))
            assert ledger.world.bases[house.contract.digest]["db"].sealed.version == "v2", "it was read back"
            patched.setattr(journal, "read", unreadable)
            with pytest.raises(InDoubt):
                await ledger.append_engine(provisioned(house, "v3"))
        assert not await ledger.save_checkpoint()
        assert ledger.world.bases[house.contract.digest]["db"].sealed.version == "v2"
        await ledger.settle_engine()
        assert ledger.world.bases[house.contract.digest]["db"].sealed.version == "v3"


class _Clock:
    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0


async def test_the_bases_of_old_stay_what_they_were() -> None:
    """A base that is provisioned anew does not change what environments of the old one hold."""
    house = House(contract=SMALL)
    async with house.open() as kernel:
        await kernel.create("old", activate=False)
        manifest = kernel.environments["old"].head.manifest
        component = manifest["db"]
        newer = msgspec.structs.replace(component, sealed=msgspec.structs.replace(component.sealed, version="newer"))
        provisioned = BaseProvisioned(at=0.0, contract=kernel.contract.digest, manifest={**manifest, "db": newer})
        kernel.world.apply(provisioned)
        kernel.world.environments.resize(0)
        assert kernel.environments["old"].head.manifest == manifest
        assert World.of(kernel.world.image()).environments["old"].head.manifest == manifest
        kernel.world.bases[kernel.contract.digest] = manifest
        house.world.hook = None


async def test_environments_at_rest_are_packed_and_cost_little() -> None:
    """Each under 2 KiB of memory, all that the engine and its journal keep of it included."""
    house = House(contract=SMALL)
    async with house.open() as kernel:
        for number in range(300):
            await kernel.create(f"early-{number}", activate=False)
        house_rows = house.disk.rows
        before_rows = sum(len(row.event) + 600 for row in house_rows)
        tracemalloc.start()
        for number in range(600):
            await kernel.create(f"late-{number}", activate=False)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows = sum(len(row.event) + 600 for row in house_rows) - before_rows  # the memory journal's own disk
        assert (grown - rows) / 600 < 2048
        conductor = kernel._conductor
        assert (len(conductor.lives), len(kernel._ledger._locks), len(kernel.slots.taken)) == (0, 0, 0)
        assert isinstance(kernel.world.environments._all["early-0"], bytes)
        assert kernel.environments["early-0"].generation == 1


async def test_nothing_is_kept_of_those_that_rest_again() -> None:
    house = House(contract=SMALL)
    async with house.open() as kernel:
        for number in range(20):
            await kernel.create(f"env-{number}")
            await put(kernel, f"env-{number}", "k", number)
            if number % 2:
                await kernel.park(f"env-{number}")
            else:
                await kernel.retire(f"env-{number}")
        conductor = kernel._conductor
        kept = (len(conductor.lives), len(conductor._branches), len(kernel._ledger._locks), len(kernel.slots.taken))
        assert kept == (0, 0, 0, 0)
        assert kernel.environments["env-1"].actions == 1


async def test_a_world_says_all_of_itself_in_its_image() -> None:
    """Whoever gives the world a new attribute has to keep it too."""
    assert set(vars(World())) == {*World().image().__struct_fields__, "environments"} - {"names", "packed", "awake"}
