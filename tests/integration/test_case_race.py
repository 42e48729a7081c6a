"""A snapshot races writers: what it seals is a prefix of what was acknowledged, database and files of one moment.

Two clients of the site write as fast as they can, and in the second run two scripts on the raw database and files do:
each its own numbered rows and files, a file after its row. Each write notes when it began and when it was acknowledged,
on one count for all. What a generation holds is then read raw from a child of it, and must be *closed*: with a write it
has every one that had been acknowledged before that write began, whoever made it. So it is a prefix of what each writer
made, and of what all of them made together.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

import anyio
import httpx
import pytest

from statefork.engine.errors import TransitionAborted
from statefork.engine.kernel import DrainPolicy
from statefork.journal.values import Moment
from tests.integration.drain_kit import Scene, open_scene
from tests.integration.postgres_kit import session

pytestmark = pytest.mark.anyio

GENERATIONS = 6
BUSY = (503,)  # frozen just now


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Ledger:
    """When each write began and was acknowledged, on one count."""

    def __init__(self) -> None:
        self._count = itertools.count(1)  # its next() is one step, whichever thread takes it
        self.began: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self._more = threading.Condition()
        self.over = False
        self.go = threading.Event()  # scripts wait for it before each write
        self.go.set()

    def begin(self, name: str) -> None:
        self.began.setdefault(name, next(self._count))

    def acknowledge(self, name: str) -> None:
        with self._more:
            self.acknowledged[name] = next(self._count)
            self._more.notify_all()

    async def until_written(self, writes: int) -> None:
        """Wait for so many acknowledgements more."""
        wanted = len(self.acknowledged) + writes

        def wait() -> None:
            with self._more:
                assert self._more.wait_for(lambda: len(self.acknowledged) >= wanted, timeout=20)

        await anyio.to_thread.run_sync(wait)

    def now(self) -> int:
        return next(self._count)


def names(writer: str) -> itertools.chain[str]:
    """What a writer writes, in order: row, file, row, …"""
    return itertools.chain.from_iterable((f"{writer}-{n}.row", f"{writer}-{n}.file") for n in itertools.count(1))


async def through_the_site(scene: Scene, writer: str, ledger: Ledger) -> None:
    """A client that tries again what was refused during a freeze."""
    base_url = str(scene.kernel.bindings("a")["site"].address["base_url"])
    async with httpx.AsyncClient(base_url=base_url, trust_env=False, timeout=30) as client:
        for name in names(writer):
            ledger.begin(name)
            while not ledger.over:
                if name.endswith(".row"):
                    answer = await client.post("/add/", data={"title": name})
                else:
                    answer = await client.post("/upload/", data={"name": name, "body": name})
                if answer.status_code not in BUSY:
                    assert answer.status_code == 200, scene.server_log()
                    ledger.acknowledge(name)
                    break
            if ledger.over:
                return


def by_hand(database: Mapping[str, str | int], media: Path, writer: str, ledger: Ledger) -> None:
    """A script that opens and closes for each write, and tries again what did not work."""
    lost = refusals(database)
    for name in names(writer):
        ledger.begin(name)
        while not ledger.over:
            ledger.go.wait()
            try:
                if name.endswith(".row"):
                    insert(database, name)
                else:
                    (media / name).write_text(name)
            except lost:
                continue  # busy or frozen, and nothing of it happened, or it did and its answer was lost
            ledger.acknowledge(name)
            break
        if ledger.over:
            return


def refusals(database: Mapping[str, str | int]) -> tuple[type[Exception], ...]:
    """How a database or a file says that it is busy, frozen, or that the session was ended."""
    if "path" in database:
        return (sqlite3.OperationalError, OSError)
    import psycopg

    return (psycopg.OperationalError, OSError)


def insert(database: Mapping[str, str | int], name: str) -> None:
    """One row, once, in a session of its own."""
    if "path" in database:
        with sqlite3.connect(str(database["path"]), timeout=0.01, isolation_level=None) as raw:
            raw.execute("INSERT INTO notes_note (title, body) VALUES (?, '')", (name,))
        raw.close()
    else:
        with session(database) as there:
            there.execute("INSERT INTO notes_note (title, body) VALUES (%s, '') ON CONFLICT DO NOTHING", (name,))


async def sealed_under_fire(scene: Scene, ledger: Ledger) -> dict[Moment, tuple[int, int]]:
    """Generations, each with the moments at which its snapshot was asked for and done."""
    found: dict[Moment, tuple[int, int]] = {}
    await ledger.until_written(8)
    while len(found) < GENERATIONS:
        asked, published = ledger.now(), scene.kernel.world.capsule("a").generation
        try:
            moment = await scene.kernel.snapshot("a", drain=DrainPolicy(deadline_s=20))
        except TransitionAborted:
            # A script wrote in the midst of the cut, or held the database: it was told, and nothing was published. No
            # snapshot waits for scripts that know nothing of it, so the next try is theirs to allow, wherever they are.
            assert scene.kernel.world.capsule("a").generation == published
            ledger.go.clear()
            continue
        found[moment] = (asked, ledger.now())
        ledger.go.set()
        await ledger.until_written(8)
    return found


def content(scene: Scene, env: str) -> set[str]:
    """The names of all rows and files of an environment, read raw."""
    files = scene.media(env)
    assert all(text == name for name, text in files.items()), "a file half written"
    return files.keys() | {title for title in scene.titles(env) if title.endswith(".row")}


def check(present: set[str], ledger: Ledger, asked: int, done: int) -> None:
    """The rules above."""
    assert all(ledger.began[name] < done for name in present)
    missing_ends = [ledger.acknowledged[name] for name in ledger.acknowledged if name not in present]
    assert min(missing_ends, default=done) > asked, "acknowledged before the snapshot was asked for, and not in it"
    latest = max((ledger.began[name] for name in present), default=0)
    lost = [name for name, at in ledger.acknowledged.items() if at < latest and name not in present]
    assert not lost, f"not closed: {lost} were acknowledged before the last of what is there had begun"


@pytest.mark.parametrize("scripted", [False, True], ids=["clients", "clients and scripts"])
async def test_each_sealed_generation_is_a_prefix_of_what_was_acknowledged(
    either_base: Path, tmp_path: Path, scripted: bool
) -> None:
    ledger = Ledger()
    async with open_scene(Scene, either_base, tmp_path, settings="notes.unindexed") as scene:
        bindings = scene.kernel.bindings("a")
        writers = ("script1", "script2") if scripted else ()
        places = (bindings["db"].address, Path(str(bindings["media"].address["path"])))
        scripts = [threading.Thread(target=by_hand, args=(*places, writer, ledger)) for writer in writers]
        async with anyio.create_task_group() as tasks:
            try:
                for script in scripts:
                    script.start()
                for writer in ("client1", "client2"):
                    tasks.start_soon(through_the_site, scene, writer, ledger)
                with anyio.fail_after(60):
                    generations = await sealed_under_fire(scene, ledger)
            finally:
                ledger.over = True
                ledger.go.set()
                for script in scripts:
                    await anyio.to_thread.run_sync(script.join)
        before: set[str] = set()
        for number, (moment, (asked, done)) in enumerate(generations.items()):
            (child,) = await scene.kernel.fork(moment, [f"child-{number}"])
            assert child.error is None
            present = content(scene, child.env)
            check(present, ledger, asked, done)
            assert before < present, "and each generation has all of the one before"
            before = present
            await scene.kernel.retire(child.env)
