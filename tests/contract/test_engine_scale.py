"""Nothing grows that should not: long chains, many lives, many environments, with real files and databases.

Counts only; the times are in benchmarks/scale.py.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from statefork.adapters.interfaces.registry import make_resources
from statefork.engine.capsules import Packing
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import EvaluationContext, Kernel, Settings, open_kernel
from statefork.engine.ports import Services
from statefork.engine.slots import Slots
from statefork.journal.sqlite import SqliteJournal
from statefork.journal.store import open_state
from statefork.journal.values import Moment
from statefork.replay.audit import audit
from tests.contract.engine_kit import SMALL, House, put

pytestmark = pytest.mark.anyio
STORES = """
[contract]
name = "basket"
[resources.db]
adapter = "sqlite"
base = "db.sqlite3"
[resources.media]
adapter = "files"
base = "media"
"""
LAYERS_MAX = 7 * 3 + 1  # a stack over a base after 200 seals: see adapters/resources/files/compaction.py
COMMITS_MAX = 2  # durable ones, of a transition with components that cost nothing


@pytest.fixture
def anyio_backend() -> str:
    """These count; what asyncio does differently is tested elsewhere."""
    return "trio"


@pytest.fixture
def bases(tmp_path: Path) -> Path:
    folder = tmp_path / "bases"
    (folder / "media").mkdir(parents=True)
    for number in range(4):
        (folder / "media" / f"{number}.bin").write_bytes(b"%d" % number * 1000)
    connection = sqlite3.connect(folder / "db.sqlite3")
    connection.executescript("CREATE TABLE basket (product TEXT); CREATE TABLE product (name TEXT)")
    connection.close()
    return folder


@asynccontextmanager
async def opened(bases: Path, **settings: Any) -> AsyncIterator[tuple[Kernel, SqliteJournal]]:
    contract = parse_contract(STORES, "basket.toml")
    async with open_state(bases.parent / "state", write=True) as opened_state:
        path, journal, blobs = opened_state.path, opened_state.journal, opened_state.blobs
        services = Services(state=path, journal=journal.id, blobs=blobs, base_dir=bases)
        resources = make_resources(contract, services)
        async with open_kernel(
            journal=journal, contract=contract, resources=resources, blobs=blobs, settings=Settings(**settings)
        ) as kernel:
            yield kernel, journal


def buy(kernel: Kernel, env: str, product: str) -> None:
    """A raw client writes a row, a new file and an old one."""
    bindings = kernel.bindings(env)
    with sqlite3.connect(str(bindings["db"].address["path"])) as connection:
        connection.execute("INSERT INTO basket VALUES (?)", (product,))
    connection.close()
    media = Path(str(bindings["media"].address["path"]))
    (media / "receipt.txt").write_text(product)
    (media / "0.bin").write_bytes(product.encode() * 100)


def basket(kernel: Kernel, env: str) -> list[str]:
    connection = sqlite3.connect(str(kernel.bindings(env)["db"].address["path"]))
    found = [name for (name,) in connection.execute("SELECT product FROM basket")]
    connection.close()
    return found


def pictures(kernel: Kernel, env: str) -> dict[str, bytes]:
    media = Path(str(kernel.bindings(env)["media"].address["path"]))
    return {path.name: path.read_bytes() for path in media.iterdir()}


IDLE_WORKERS = "Trio thread"  # they come with the load, and go ten seconds after it


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def counts(kernel: Kernel, state: Path) -> dict[str, int]:
    """Everything of which a life must leave nothing behind. What is done behind its back is done by then."""
    for resource in kernel.resources.values():
        if (sums := getattr(resource, "_sums", None)) is not None:
            sums.stop(threading.TIMEOUT_MAX)
    me = psutil.Process()
    conductor = kernel._conductor
    found = {
        "processes": len(me.children(recursive=True)),
        "threads": sum(not thread.name.startswith(IDLE_WORKERS) for thread in threading.enumerate()),
        "descriptors": descriptors(),
        "mounts": Path("/proc/self/mountinfo").read_text().count(f" {state.resolve()}/"),
        "ports": len(me.net_connections()),
        "files": sum(1 for _ in (state / "resources").rglob("*")),
        "tasks": anyio_tasks(),
        "lives": len(conductor.lives),
        "branches": len(conductor._branches),
        "locks": len(kernel._ledger._locks),
        "seats": len(kernel.slots.taken),
        "awake": len(kernel.world.environments.awake),
    }
    for name, resource in kernel.resources.items():
        for kept, value in vars(resource).items():
            if isinstance(value, dict):
                found[f"{name}.{kept}"] = len(value)
    return found


def anyio_tasks() -> int:
    return len(anyio.get_running_tasks())


async def test_fifty_episodes_each_start_empty(bases: Path) -> None:
    """After a reset every component is byte for byte what the base holds."""
    async with opened(bases) as (kernel, _):
        await kernel.create("shop")
        base = kernel.environments["shop"].generations[1].manifest
        digests = {name: await kernel.resources[name].digest(one.sealed) for name, one in base.items()}
        for number in range(50):
            assert basket(kernel, "shop") == []
            assert pictures(kernel, "shop") == {f"{n}.bin": b"%d" % n * 1000 for n in range(4)}
            buy(kernel, "shop", f"product {number}")
            assert basket(kernel, "shop") == [f"product {number}"]
            await kernel.reset("shop")
        sealed = await kernel.snapshot("shop")
        for name, one in kernel.world.generation(sealed).manifest.items():
            assert await kernel.resources[name].digest(one.sealed) == digests[name], name


async def test_the_two_hundredth_snapshot_leaves_as_much_behind_as_the_fifth(bases: Path) -> None:
    async with opened(bases) as (kernel, journal):
        await kernel.create("shop")
        at: dict[int, dict[str, int]] = {}
        for number in range(1, 201):
            buy(kernel, "shop", f"product {number}")
            commits = journal.stats.commits
            await kernel.snapshot("shop")
            assert journal.stats.commits - commits <= COMMITS_MAX
            if number in (5, 200):
                found = counts(kernel, bases.parent / "state")
                at[number] = {name: found[name] for name in found.keys() - {"files", "threads"}}
        assert at[200] == at[5]
        media: Any = kernel.resources["media"]
        record = media._ledger.sealed(kernel.environments["shop"].head.manifest["media"].sealed)
        assert len(record.layers) <= LAYERS_MAX
        assert len(basket(kernel, "shop")) == 200
        assert kernel.environments["shop"].generation == 201


async def test_lives_leave_nothing_behind(bases: Path) -> None:
    """Created, written and retired: processes, descriptors, mounts, ports, files and records are what they were."""
    state = bases.parent / "state"
    async with opened(bases) as (kernel, _):

        async def live(number: int) -> None:
            env = f"env-{number}"
            await kernel.create(env)
            buy(kernel, env, "something")
            if number % 3 == 0:
                await kernel.park(env)
            if number % 5 == 0:
                await kernel.reset(env)
            await kernel.retire(env)

        for number in (1, 2, 4):
            await live(number)
        before = counts(kernel, state)
        for number in range(7, 150):
            if number % 3 and number % 5:
                await live(number)
        assert counts(kernel, state) == before
        for number in (150, 153, 155):
            await live(number)
        after = counts(kernel, state)
        grown = {name for name in after if after[name] != before[name]}
        assert grown <= {"files"}, "what was published is history, and stays"
    report = audit(state)
    assert report.clean, report


async def test_a_thousand_lives_leave_nothing_in_the_engine() -> None:
    house = House(contract=SMALL)
    async with house.open() as kernel:
        for number in range(1000):
            await kernel.create(f"env-{number}")
            await kernel.retire(f"env-{number}")
        conductor = kernel._conductor
        kept = (len(conductor.lives), len(conductor._branches), len(kernel._ledger._locks), len(kernel.slots.taken))
        assert kept == (0, 0, 0, 0)
        assert len(house.world.branches) == len(house.world.bindings) == 0
        assert len(kernel.world.environments._warm) <= 256


async def test_a_failed_create_leaves_no_record() -> None:
    house = House(contract=SMALL)
    async with house.open() as kernel:

        async def fails(call: Any) -> None:
            if call.method == "probe" and call.when == "before":
                raise OSError("no")

        for number in range(50):
            house.world.hook = fails
            with pytest.raises(Exception, match="aborted"):
                await kernel.create(f"env-{number}")
        house.world.hook = None
        assert len(kernel._conductor.lives) == 0
        assert len(kernel.environments) == 0
        await kernel.create("env-0")
        assert kernel.environments["env-0"].activation > 1, "tickets of what failed fit nothing"


async def test_a_transition_costs_two_durable_commits(tmp_path: Path) -> None:
    house = House(tmp_path / "journal.sqlite3", contract=SMALL)
    async with house.open() as kernel:
        journal = house.journal
        assert isinstance(journal, SqliteJournal)

        async def cost(work: Any) -> int:
            await journal.flush()
            before = journal.stats.commits
            await work
            return journal.stats.commits - before

        await kernel.create("warm")  # the bases are provisioned
        costs = {
            "create": await cost(kernel.create("shop")),
            "create parked": await cost(kernel.create("later", activate=False)),
            "snapshot": await cost(kernel.snapshot("shop")),
            "reset": await cost(kernel.reset("shop")),
            "restore": await cost(kernel.restore("shop", Moment(env="shop", generation=1))),
            "fork": await cost(kernel.fork(Moment(env="shop", generation=1), ["child"])),
            "clone": await cost(kernel.clone(Moment(env="shop", generation=1), "copy")),
            "recover": await cost(kernel.recover("copy")),
            "park": await cost(kernel.park("shop")),
            "reset parked": await cost(kernel.reset("shop")),
            "activate": await cost(kernel.activate("shop")),
            "retire": await cost(kernel.retire("shop")),
        }
        assert {name: count for name, count in costs.items() if count > COMMITS_MAX} == {}


async def test_operations_look_at_their_own_environment_only() -> None:
    """With a thousand others at rest, none of these is unpacked by what is done with one."""
    house = House(contract=SMALL)
    async with house.open() as kernel:
        for number in range(1000):
            await kernel.create(f"env-{number}", activate=False)
        kernel.world.environments.resize(8)
        unpacked: list[str] = []
        packing = kernel.world.environments._packing
        unpack = packing.unpack

        def noting(data: bytes) -> Any:
            capsule = unpack(data)
            unpacked.append(capsule.env)
            return capsule

        packing.unpack = noting  # type: ignore[method-assign]  # only to see what is touched

        async def check(_context: EvaluationContext) -> float:
            return 1.0

        await kernel.create("shop")
        await put(kernel, "shop", "k", 1)
        async with kernel.lease("shop", "somebody"):
            pass
        await kernel.evaluate("shop", "it", check)
        await kernel.snapshot("shop")
        await kernel.fork("shop", ["child"])
        await kernel.reset("shop")
        await kernel.park("shop")
        await kernel.activate("shop")
        await kernel.retire("child")
        assert {env for env in unpacked if env.startswith("env-")} == set()
        await kernel.collect()
        packing.unpack = unpack  # type: ignore[method-assign]  # as it was


async def test_opening_touches_only_who_is_not_at_rest(bases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments truly created and never used: no file of theirs is anywhere, and opening unpacks none of them."""
    state = bases.parent / "state"
    async with opened(bases) as (kernel, _):
        await kernel.create("first")
        await kernel.park("first")
        before = counts(kernel, state)["files"]
        for number in range(0, 1000, 50):
            names = [f"env-{one}" for one in range(number, number + 50)]
            results = await kernel.create_each(names, activate=False)
            assert all(result.error is None for result in results)
        assert counts(kernel, state)["files"] == before
    assert list(state.glob("*.checkpoint"))
    touched: list[int] = []
    unpack = Packing.unpack

    def noting(self: Packing, data: bytes) -> Any:
        touched.append(len(data))
        return unpack(self, data)

    monkeypatch.setattr(Packing, "unpack", noting)
    async with opened(bases) as (kernel, _):
        assert touched == []
        assert len(kernel.environments) == 1001
        await kernel.activate("env-777")
        assert len(touched) == 1
        assert basket(kernel, "env-777") == []


async def test_a_long_queue_for_slots_costs_each_who_waits_a_few_looks() -> None:
    looked = 0

    class Counting(Slots):
        def _is_next(self, ticket: Any) -> bool:
            nonlocal looked
            looked += 1
            return super()._is_next(ticket)

    async def never(_env: str) -> str:
        return "it is in use"

    slots = Counting(4, kind="place", is_bound=lambda _: False, is_idle=lambda _: False, give_way=never)
    served: list[str] = []

    async def one(env: str) -> None:
        async with slots.claim(env, deadline_s=30):
            served.append(env)
            await anyio.lowlevel.checkpoint()

    names = [f"env-{number}" for number in range(1000)]
    async with anyio.create_task_group() as tasks:
        async with slots.claim("a", deadline_s=1), slots.claim("b", deadline_s=1):
            async with slots.claim("c", deadline_s=1), slots.claim("d", deadline_s=1):
                for env in names:
                    tasks.start_soon(one, env)
                await anyio.wait_all_tasks_blocked()
                order = [waiting.env for waiting in slots.queue]
    assert sorted(order) == sorted(served) == sorted(names)
    place = {env: number for number, env in enumerate(served)}
    assert max(abs(place[env] - number) for number, env in enumerate(order)) < 2 * slots.limit, "in order of arrival"
    assert looked < 40 * len(names), "not the square of their number"
