"""The demo's engine is killed in the middle, and its state directory is served again."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import statefork
from statefork.engine.capsule import Phase
from statefork.journal.events import ActionBegun, EnvironmentRetired, Event, GenerationPublished
from statefork.journal.store import open_state
from tests.integration.shop_kit import needs_shop, open_shop, seeded
from tests.leak_guard import mounts

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.shop, pytest.mark.timeout(600), needs_shop]

KILLED_AFTER = (9, 100, 205)  # events: in the first creations, while agents act, about the forks
WITNESSES = 2  # environments that are used again after each kill
DEMO_S = 300.0
TICK_S = 0.05
WITHOUT_MOUNTS = ["-x"] if sys.platform == "linux" else []


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Path]]:
    """What one run had on disk at each number of events: copies made while all of it stood still, without its mounts,
    as a machine's crash leaves it; and where it was killed. They are used once it is dead: who opens one ends the
    processes that it names.
    """
    state, *copies = (tmp_path_factory.mktemp("demo") / "state" for _ in KILLED_AFTER)
    output = state.with_suffix(".out")
    command = [sys.executable, "-m", "statefork", "demo", "--envs", "4", "--state", str(seeded(state)), "--keep"]
    with output.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as demo:
        try:
            for after, copy in zip(KILLED_AFTER, copies, strict=False):
                wait_for(demo, state, output, after)
                with standing_still(demo.pid):
                    subprocess.run(["cp", "-a", *WITHOUT_MOUNTS, state, copy], check=True)
            wait_for(demo, state, output, KILLED_AFTER[-1])
        finally:
            demo.kill()  # it and nothing else
            demo.wait()
    yield dict(zip(KILLED_AFTER, (*copies, state), strict=True))
    for mount in mounts():  # where the test that opens this one was not run
        if mount.is_relative_to(state.resolve()):
            subprocess.run(["umount", mount], check=True)


def wait_for(demo: subprocess.Popen[bytes], state: Path, output: Path, after: int) -> None:
    """Return when the demo's journal holds so many events on disk."""
    for _ in range(int(DEMO_S / TICK_S)):
        if events_on_disk(state) >= after:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            demo.wait(TICK_S)
            raise AssertionError(f"the demo ended too soon: {output.read_text()}")
    raise AssertionError(f"the demo is too slow: {output.read_text()}")


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """A process and all that it started, as if it were dead for a while."""
    engine = psutil.Process(pid)
    engine.suspend()  # first, so that it starts nothing more
    processes = [engine, *engine.children(recursive=True)]
    for process in processes[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def events_on_disk(state: Path) -> int:
    """Asked of SQLite itself."""
    with contextlib.suppress(sqlite3.OperationalError):
        with closing(sqlite3.connect(f"file:{state / 'journal.sqlite3'}?mode=ro", uri=True)) as journal:
            return int(journal.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()[0])
    return 0


async def history(state: Path) -> list[Event]:
    """Everything that is on disk."""
    async with open_state(state, write=False) as opened:
        return [recorded.event async for recorded in opened.journal.read()]


def last_words(past: list[Event]) -> tuple[dict[str, GenerationPublished], dict[str, list[int]]]:
    """The last publish of each environment that was alive, and the numbers of the actions begun after it."""
    heads: dict[str, GenerationPublished] = {}
    lost: dict[str, list[int]] = {}
    for event in past:
        if isinstance(event, EnvironmentRetired):
            del heads[event.env], lost[event.env]
        elif isinstance(event, GenerationPublished):
            heads[event.env] = event
            lost[event.env] = []
        elif isinstance(event, ActionBegun):
            lost[event.env].append(event.number)
    return heads, lost


@pytest.mark.parametrize("after", KILLED_AFTER)
async def test_what_was_published_serves_again(left: dict[int, Path], after: int) -> None:
    state = left[after]
    heads, lost = last_words(await history(state))
    assert heads
    async with open_shop(state) as engine:
        assert {moment.env for moment in engine.recovered.recovered} == set(heads)
        assert {env: list(numbers) for env, numbers in engine.recovered.lost.items()} == lost
        assert engine.recovered.collection.failed == ()
        again = await engine.gc()
        assert (again.collected, again.failed) == ((), ())
        for name, head in heads.items():
            capsule = engine.capsules[name]
            assert capsule.phase is Phase.PARKED
            assert capsule.head.op == "recover"
            assert capsule.head.manifest == head.manifest
        for name in sorted(heads)[:WITNESSES]:
            env = engine.environment(name)
            seen = await env.observe()  # activates it
            assert seen.url.startswith("http://shop.example/")
            moment = await env.snapshot()
            stores = engine.kernel.world.generation(moment).manifest
            assert {store: stores[store].sealed for store in ("db", "media", "search")} == {
                store: heads[name].manifest[store].sealed for store in ("db", "media", "search")
            }
    assert statefork.audit(state).clean
