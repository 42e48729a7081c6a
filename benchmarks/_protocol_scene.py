"""The raw side of the protocol's benchmark: what its operations write and read, and what its detectors see."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import httpx

from statefork.engine.kernel import Kernel
from statefork.engine.staging import Context

ENV = "shop"


class Scene:
    """What detectors and clients share: the raw stores of the one environment, and the state of the present switch."""

    def __init__(self, *, pages: bool) -> None:
        self.kernel: Kernel
        self.pages = pages
        self.product = (0, "")
        self.mixed = 0
        self.in_flight = 0
        self.done = 0
        self.draining = anyio.Event()
        self.published = anyio.Event()
        self.decided_at = 0.0
        self.publish_ms: list[float] = []
        self.numbers = iter(range(1, sys.maxsize))

    def next_switch(self) -> None:
        self.draining, self.published = anyio.Event(), anyio.Event()

    def database(self, bindings: Mapping[str, Any] | None = None) -> closing[sqlite3.Connection]:
        path = (bindings or self.kernel.bindings(ENV))["db"].address["path"]
        raw = sqlite3.connect(path, isolation_level=None, timeout=20)
        raw.execute("PRAGMA synchronous = OFF")  # what is measured is not how long these clients wait for the disk
        return closing(raw)

    def row_mark(self) -> str:
        with self.database() as raw:
            return str(raw.execute("SELECT mark FROM world").fetchone()[0])

    def file_mark(self) -> str:
        return (Path(str(self.kernel.bindings(ENV)["media"].address["path"])) / "mark").read_text()

    async def page_mark(self) -> str:
        """The mark in the title of the product's page, by a client that knows only the environment's address."""
        base = str(self.kernel.bindings(ENV)["shop"].address["base_url"])
        number, slug = self.product
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            page = (await client.get(f"{base}/catalogue/{slug}_{number}/")).raise_for_status().text
        found = re.search(r"mark-[0-9]+", page)
        return found.group() if found else ""

    async def begin(self) -> tuple[int, str]:
        """Note the beginning of an operation; its number, and the mark that it read."""
        number = next(self.numbers)

        def rows() -> str:
            self.note(number, "began")
            return self.row_mark()

        return number, await anyio.to_thread.run_sync(rows)

    async def end(self, number: int, mark: str) -> None:
        """Look at the rest of the world, and note the end."""
        seen = {mark, await anyio.to_thread.run_sync(self.file_mark)}
        if self.pages:
            seen.add(await self.page_mark())
        self.mixed += len(seen) > 1
        await anyio.to_thread.run_sync(self.note, number, "ended")
        self.done += 1

    def note(self, number: int, step: str) -> None:
        with self.database() as raw:
            raw.execute("INSERT INTO operations (number, step) VALUES (?, ?)", (number, step))

    def unfinished(self, context: Context) -> int:
        """Operations that the context's database knows the beginning of and not the end."""
        sql = (
            "SELECT count(*) FROM operations AS one WHERE step = 'began' AND NOT EXISTS "
            "(SELECT 1 FROM operations WHERE number = one.number AND step = 'ended')"
        )
        with self.database(context.bindings) as raw:
            return int(raw.execute(sql).fetchone()[0])
