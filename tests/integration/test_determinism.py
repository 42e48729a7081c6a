"""Chance and time are given back: by a real browser and a real server, in forks of moments that nobody sealed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.probing import compare
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.journal.events import ActionBegun
from tests.integration.drain_kit import CONTRACT, SQLITE
from tests.integration.web_kit import PROJECT

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

GOTO = {"type": "goto", "url": "http://notes.example/dice/"}
ROLL = {"type": "click", "selector": "#roll"}
BROWSER = """
[resources.browser]
adapter = "browser"
depends_on = ["site"]
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@asynccontextmanager
async def running(base: Path, folder: Path, determinism: str, masks: str = "") -> AsyncIterator[Engine]:
    """An engine over the notes project and a browser."""
    if not (folder / "notes.toml").exists():
        shutil.copytree(base, folder, dirs_exist_ok=True)
        text = (
            CONTRACT.replace("DATABASE", SQLITE).replace("SETTINGS", "notes.settings").replace("HOST", "notes.example")
        )
        text = text.replace("PROJECT", str(PROJECT)).replace(
            '"notes"\n', f'"notes"\ndeterminism = "{determinism}"\n', 1
        )
        (folder / "notes.toml").write_text(text + BROWSER + masks)
    async with open_engine(folder / "notes.toml", state=folder / "state") as engine:
        yield engine


def titles(env: Environment) -> list[str]:
    """What the database holds, read past everything."""
    with sqlite3.connect(str(env.bindings["db"].address["path"])) as raw:
        return [row[0] for row in raw.execute("SELECT title || body FROM notes_note ORDER BY id")]


async def test_a_moment_draws_what_was_drawn_and_its_future_draws_anew(notes_base: Path, tmp_path: Path) -> None:
    async with running(notes_base, tmp_path, "record") as engine:
        env = await engine.create("a")
        await env.act(GOTO)
        await env.act(GOTO)
        await env.snapshot()
        seen = [await env.act(action) for action in (ROLL, GOTO, ROLL)]
        held = titles(env)
        assert len(set(held)) == len(held) == 1 + 2
        pages = [one.text for one in seen]
        (one,) = await engine.fork("a#5")
        assert one.made is not None
        assert (one.made.verdict, one.made.compared, one.made.passed_over) == ("exact-observed", 3, ())
        assert titles(one) == held
        assert (await one.observe()).text == pages[-1]
        futures = [(await child.act(ROLL)).text for child in (one, env)]
        assert len({*futures, *pages}) == 5
        began = [record.event async for record in engine.journal.read() if isinstance(record.event, ActionBegun)]
        assert all(len(event.seed) == 32 for event in began)
        assert {event.clock > 0 for event in began if event.env == "a"} == {False}
        assert {event.clock > 0 for event in began if event.env == one.name and event.number <= 5} == {True}
        (again,) = await engine.fork(f"{one.name}#6")  # a future of its own is given back as well
        assert (await again.observe()).text == futures[0]
        assert titles(again) == titles(one)


async def test_strict_stands_still_and_is_equal_to_the_pixel(notes_base: Path, tmp_path: Path) -> None:
    async with running(notes_base, tmp_path, "strict") as engine:
        env = await engine.create("a")
        await env.act(GOTO)
        seen = await env.act(ROLL)
        (child,) = await engine.fork("a#2")
        assert child.made is not None
        assert child.made.verdict == "exact-observed"
        assert (await child.observe()).observation.screenshot == seen.observation.screenshot
        began = [record.event async for record in engine.journal.read() if isinstance(record.event, ActionBegun)]
        assert [event.clock for event in began[:2]] == [event.clock for event in began[2:]]


async def test_a_page_reads_the_same_in_two_browsers(tmp_path: Path) -> None:
    found = {row.source: row for row in await compare("strict", tmp_path)}
    differed = [source for source, row in found.items() if row.equal < row.actions]
    assert differed == ["Math.random in a worker"], "what stays outside is what the documents say"
    assert {"Date, its milliseconds", "Math.random in a frame", "screenshot", "setTimeout"} < found.keys()
