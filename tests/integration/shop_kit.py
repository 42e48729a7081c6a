"""The seeded shop for tests: its base is built once per recipe into the user's cache, outside the repository."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from statefork.adapters.resources.browser.chromium import find_chromium
from statefork.engine.errors import MissingDependency
from statefork.engine.settings import Settings
from statefork.journal.events import Event
from statefork.worlds.shop.agents import Shopper
from statefork.worlds.shop.evaluators import Evaluate, Judge, Score

if TYPE_CHECKING:
    from statefork.adapters.interfaces.environment import Environment
    from statefork.adapters.interfaces.python import Engine
    from statefork.adapters.resources.browser.resource import BrowserResource


def _missing() -> str:
    absent = [name for name in ("oscar", "whoosh", "PIL") if find_spec(name) is None]
    if absent:
        return f"the shop needs {', '.join(absent)}: pip install 'statefork[demo]'"
    try:
        find_chromium()
    except MissingDependency as error:
        return str(error)
    return ""


MISSING = _missing()
needs_shop = pytest.mark.skipif(bool(MISSING), reason=MISSING or "the shop is here")
BUILDS = {"shop": "statefork.worlds.shop.build", "shop-postgres": "statefork.worlds.shop.build_postgres"}


def seeded(state: Path, contract: str = "shop") -> Path:
    """A state directory that has the shop's base already."""
    module = import_module(BUILDS[contract])
    base = module.cached(lambda fraction, text: print(f"{fraction:4.0%} {text}", file=sys.stderr))
    if not (state / "worlds" / base.name).exists():
        shutil.copytree(base, state / "worlds" / base.name)
    return state


@asynccontextmanager
async def open_shop(state: Path, *, settings: Settings | None = None, contract: str = "shop") -> AsyncIterator[Engine]:
    """An engine over the shop."""
    from statefork.adapters.interfaces.python import open_engine

    async with open_engine(contract, state=seeded(state, contract), settings=settings) as engine:
        yield engine


def shopper(env: Environment, seed: int = 0) -> Shopper:
    """A scripted agent in an environment."""
    return Shopper(env, seed=seed)


async def judged(env: Environment, judge: Judge, agent: Shopper) -> Score:
    """The verdict of an evaluator, with its facts."""
    check = Evaluate(judge, agent)
    await env.evaluate(check, name="judged")
    assert check.score is not None
    return check.score


async def events(engine: Engine, env: str, kind: type[Event]) -> list[Event]:
    """The environment's events of one kind, in order."""
    await engine.journal.flush()
    return [
        recorded.event
        async for recorded in engine.journal.read()
        if isinstance(recorded.event, kind) and getattr(recorded.event, "env", "") == env
    ]


def the_browser(engine: Engine) -> BrowserResource:
    """The resource behind all environments' pages."""
    from statefork.adapters.resources.browser.resource import BrowserResource

    browser = engine.kernel.resources["browser"]
    assert isinstance(browser, BrowserResource)
    return browser


async def contexts(engine: Engine) -> int:
    """Browser contexts that exist, as Playwright counts them, without what is made in advance (it is closed)."""
    browser = the_browser(engine)
    host = browser._running()

    async def count() -> int:
        await host.reserve.close()
        return len((await host.ready()).contexts)

    return await browser._thread.call(count)


def chromium(engine: Engine) -> psutil.Process:
    """The browser process itself: of Chromium's the one that none of them has started."""
    parents: dict[int, int] = {}
    for pid in the_browser(engine).process_ids():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if "chrom" in process.name():
                parents[pid] = process.ppid()
    (main,) = (pid for pid, parent in parents.items() if parent not in parents)
    return psutil.Process(main)


@contextmanager
def filled(disk: Path, *, leave_bytes: int) -> Iterator[None]:
    """A disk with so much room and no more, by a file that others of the machine might have put there."""
    filler = disk / "filler"
    try:
        with filler.open("wb") as file:
            while (room := shutil.disk_usage(disk).free - leave_bytes) > 0:
                file.write(bytes(min(room, 1 << 20)))
                file.flush()
        yield
    finally:
        filler.unlink(missing_ok=True)


@contextmanager
def private_shop(directory: Path) -> Iterator[str]:
    """The same shop on a server of its own, without statefork: the reference. Gives its base URL."""
    from statefork.worlds.shop.build import cached

    shutil.copytree(cached(lambda fraction, text: None), directory)
    command = [sys.executable, "-m", "statefork.worlds.shop", "serve", "--base", str(directory), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said: list[str] = []
            for line in server.stderr:
                said.append(line)
                if "serves on " in line:
                    yield line.split("serves on ")[1].split()[0].rstrip("/")
                    break
            else:
                raise AssertionError(f"the private shop did not start: {''.join(said)}")
        finally:
            server.terminate()
