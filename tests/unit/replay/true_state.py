"""One true state directory, made by the engine over real stores: its journal, blobs, records and layers."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from statefork.adapters.resources import files, memory, sqlite
from statefork.engine.contract import parse_contract
from statefork.engine.kernel import Kernel, open_kernel
from statefork.engine.ports import Services
from statefork.journal.store import open_state
from statefork.journal.values import Moment

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.media]
adapter = "files"
base = "media"
strategy = "copy"
[resources.page]
adapter = "memory"
"""


async def live(state: Path) -> None:
    """A little history: a snapshot, a restore, a fork, a reset, an input with a body; one environment stays open."""
    with closing(sqlite3.connect(state.parent / "notes.sqlite3", isolation_level=None)) as base:
        base.execute("create table if not exists note (text text)")
    (state.parent / "media").mkdir(exist_ok=True)
    (state.parent / "media" / "logo.svg").write_text("<svg/>")
    async with engine(state) as kernel:
        await kernel.create("a")
        for number in range(3):
            await kernel.act("a", {"type": "put", "key": "k", "value": number})
            path = kernel.bindings("a")["db"].address["path"]
            with closing(sqlite3.connect(str(path), isolation_level=None)) as database:
                database.execute("insert into note values (?)", (str(number),))
            write(str(kernel.bindings("a")["media"].address["path"]), number)
            await kernel.snapshot("a")
        async with kernel.lease("a", "curl") as lease:
            kernel.record_input(lease, method="POST", url="http://notes.example/", headers={}, body=b"tea", status=200)
        await kernel.restore("a", Moment(env="a", generation=2))
        await kernel.fork(Moment(env="a", generation=3), ("b", "c"))
        await kernel.reset("b")
        await kernel.retire("c")
        await kernel.upkeep.mark(Moment(env="a", generation=2), "here")


def write(tree: str, number: int) -> None:
    """A file in an environment's tree."""
    Path(tree, f"{number}.txt").write_text(f"file {number}")


@asynccontextmanager
async def engine(state: Path) -> AsyncIterator[Kernel]:
    """The engine of a state directory."""
    contract = parse_contract(CONTRACT, "notes.toml")
    async with open_state(state, write=True) as opened:
        services = Services(state=state, journal=opened.journal.id, blobs=opened.blobs, base_dir=state.parent)
        resources = {
            "db": sqlite.make("db", contract.convert("db", sqlite.Options), services),
            "media": files.make("media", contract.convert("media", files.Options), services),
            "page": memory.MemoryResource("page", memory.Options(), memory.MemoryWorld(), opened.journal.id),
        }
        async with open_kernel(
            journal=opened.journal, contract=contract, resources=resources, blobs=opened.blobs
        ) as kernel:
            yield kernel


def edit(state: Path, statement: str, *values: object) -> None:
    """Somebody with an SQLite tool."""
    with closing(sqlite3.connect(state / "journal.sqlite3", isolation_level=None)) as journal:
        assert journal.execute(statement, values).rowcount
