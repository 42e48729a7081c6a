"""A small world over a state store, engines on it (also killed ones), and the proof that nothing is left of it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import statefork
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.interfaces.store import loop
from statefork.adapters.interfaces.store.keeping import reachable
from statefork.adapters.interfaces.store.making import Wish, init
from statefork.adapters.interfaces.store.mounting import is_mounted
from statefork.adapters.interfaces.store.place import Place
from statefork.adapters.interfaces.store.sizes import MIB

SIZE = 330 * MIB
FREED_S_MAX = 5.0
CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.media]
adapter = "files"
base = "media"
"""
# Says that a generation is published, and goes on writing until it is killed.
_ENGINE = """
import sys, trio, statefork
from tests.contract.store_kit import write
async def main(contract, state):
    async with statefork.open_engine(contract, state=state) as engine:
        env = await engine.create("a")
        write(engine, "a", "kept")
        await env.snapshot()
        write(engine, "a", "lost")
        print("ready", flush=True)
        await trio.sleep_forever()
trio.run(main, *sys.argv[1:])
"""


def make_world(folder: Path) -> Path:
    """The contract, with its bases."""
    (folder / "media").mkdir()
    (folder / "media" / "readme").write_text("base")
    with closing(sqlite3.connect(folder / "notes.sqlite3")) as base:
        base.execute("create table note (text)")
        base.commit()
    contract = folder / "notes.toml"
    contract.write_text(CONTRACT)
    return contract


def make_store(state: Path, **wish: Any) -> Place:
    """A small store."""
    init(state, Wish(**{"size_bytes": SIZE, **wish}), lambda fraction, text: None)
    return Place.of(state)


@asynccontextmanager
async def engine_on(contract: Path, state: Path) -> AsyncIterator[Engine]:
    async with statefork.open_engine(contract, state=state) as engine:
        yield engine


def places(engine: Engine, env: str) -> tuple[Path, Path]:
    """Where the environment's database and tree are now."""
    bound = engine.kernel.bindings(env)
    return Path(str(bound["db"].address["path"])), Path(str(bound["media"].address["path"]))


def write(engine: Engine, env: str, text: str) -> None:
    """A row and a file."""
    database, tree = places(engine, env)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("insert into note values (?)", (text,))
        connection.commit()
    (tree / text).write_text(text)


def holds(engine: Engine, env: str) -> list[str]:
    """The rows, which have to be the files, too."""
    database, tree = places(engine, env)
    with closing(sqlite3.connect(database)) as connection:
        rows = sorted(row[0] for row in connection.execute("select text from note"))
    assert sorted(path.name for path in tree.iterdir()) == sorted([*rows, "readme"])
    return rows


def kill_an_engine(contract: Path, state: Path) -> None:
    """An engine publishes a generation of ``a``, writes on, and is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ENGINE, str(contract), str(state)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


@contextmanager
def filled(directory: Path, *, leave: int = 0) -> Iterator[None]:
    """No byte is left (or so many)."""
    ballast = directory / "ballast"
    file = os.open(ballast, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        found = os.statvfs(directory)
        os.posix_fallocate(file, 0, max(found.f_bavail * found.f_frsize - leave - MIB, MIB))
        for size in (1 << 20, 1 << 12, 1 << 9) if not leave else ():
            try:
                while True:
                    os.pwrite(file, b"x" * size, os.fstat(file).st_size)
            except OSError:
                continue
        yield
    finally:
        os.close(file)
        ballast.unlink(missing_ok=True)


def nothing_is_left(place: Place) -> bool:
    """No mount and no loop device."""
    return not is_mounted(place) and freed(place.image)


def freed(image: Path) -> bool:
    """No loop device has it; the kernel frees one when whoever looked at it last, anybody, has let go."""
    until = time.monotonic() + FREED_S_MAX
    while loop.devices_of(image):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def free_in(state: Path) -> int:
    """Bytes that are free in a store, as it is or mounted for a moment."""
    with reachable(state) as (place, _):
        found = os.statvfs(place.mounted)
        return found.f_bavail * found.f_frsize
