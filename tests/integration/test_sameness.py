"""What counts as the same: masks over real pages and a real database, and the pixels in strict determinism."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.engine.errors import ContractError
from statefork.journal.events import ReplayVerdict
from statefork.journal.values import Json
from tests.integration.test_determinism import GOTO, ROLL, running

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

CANVAS: Mapping[str, Json] = {"type": "goto", "url": "http://notes.example/pages/canvas.html"}
COUNT: Mapping[str, Json] = {"type": "click", "selector": "#count"}
DRAW: Mapping[str, Json] = {"type": "click", "selector": "#draw"}
ALL_SELECTORS = '["p:first-of-type", "#drawn", "#rolled"]'
MASKS = f"""
[masks]
selectors = {ALL_SELECTORS}
[masks.columns]
db = ["notes_note.title", "notes_note.body"]
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def declare(folder: Path, masks: str) -> None:
    """Let the contract end with these masks."""
    file = folder / "notes.toml"
    file.write_text(file.read_text().partition("\n[masks]")[0] + masks)


async def test_masks_cover_what_they_say_and_nothing_else(notes_base: Path, tmp_path: Path) -> None:
    async with running(notes_base, tmp_path, "off", MASKS) as engine:
        env = await engine.create("a")
        seen = [await env.act(action) for action in (GOTO, ROLL)]
        await env.snapshot()
        result = await engine.replay("a")
        assert (result.verdict, result.masked, result.masked_states) == ("equivalent", (1, 2), ("db",))
        assert [name for name, same in result.states.items() if not same] == ["db", "search"], "titles are indexed"
        for one in seen:  # what the agent saw is whole
            rest = one.observation.rest
            assert rest is not None
            assert "heading" not in one.text
            assert len(engine.blobs.get(rest.snapshot).splitlines()) < len(one.text.splitlines())

    declare(tmp_path, MASKS.replace('"notes_note.title", ', "").replace(ALL_SELECTORS, '["#drawn", "#rolled"]'))
    async with running(notes_base, tmp_path, "off") as engine:
        result = await engine.replay("a")
        assert (result.verdict, result.first_divergence) == ("diverged", 1)
        assert result.divergence is not None
        assert "another page content (it was recorded under other selectors" in result.divergence.what
        env = await engine.create("b")  # recorded under these: the first paragraph is not taken out
        await env.act(GOTO)
        result = await engine.replay("b")
        assert result.divergence is not None
        assert result.divergence.what == "another page content"

    declare(tmp_path, MASKS.replace('"notes_note.title", ', ""))
    async with running(notes_base, tmp_path, "off") as engine:
        result = await engine.replay("a")
        assert (result.states["db"], result.masked_states) == (False, ())


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ('[masks]\nselectors = ["p", "a[["]', r"notes.toml:\d+:\d+: masks.selectors\[1\]: 'a\[\[' is no CSS selector"),
        ('[masks.cookies]\nmedia = ["a"]', r"notes.toml:\d+:\d+: masks.cookies.media: 'media' has no cookies: files"),
        ('[masks.columns]\nmedia = ["a.b"]', r"notes.toml:\d+:\d+: masks.columns.media: 'media' has no tables: files"),
    ],
)
async def test_a_mask_that_can_cover_nothing_is_refused_at_its_place(
    notes_base: Path, tmp_path: Path, masks: str, told: str
) -> None:
    with pytest.raises(ContractError, match=told):
        async with running(notes_base, tmp_path, "off", f"\n{masks}\n"):
            pass


async def test_strict_replays_compare_pixels(notes_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pixel of a canvas, which no accessibility tree shows."""
    async with running(notes_base, tmp_path, "strict", '\n[masks]\nselectors = ["#face"]\n') as engine:
        env = await engine.create("a")
        for action in (CANVAS, DRAW):
            assert (await env.act(action)).observation.pixels
        results = [await engine.replay("a")]
        for number, canvas in enumerate(("face", "mark"), 2):
            with monkeypatch.context() as patched:
                plant = f"() => {{ window['colour of {canvas}'] = '#102031' }}"
                patched.setattr(engine.kernel, "act", planting(engine, f"a-r{number}", plant))
                results.append(await engine.replay("a"))
        assert [result.verdict for result in results] == ["exact-observed", "equivalent", "diverged"]
        divergence = results[-1].divergence
        assert divergence is not None
        assert (divergence.number, divergence.what, divergence.diff) == (2, "another screenshot", "")
        assert divergence.recorded.screenshot != divergence.seen.screenshot


def planting(engine: Engine, child: str, plant: str) -> Any:
    """The kernel's ``act``, which evaluates a script in the child's page before its second action."""
    act, asked = engine.kernel.act, []

    async def acting(name: str, action: Any, **more: Any) -> Any:
        if name == child:
            asked.append(action)
            if len(asked) == 2:
                browser: Any = engine.kernel.resources["browser"]
                async with browser.raw(engine.kernel.bindings(name)["browser"]) as page:
                    await page.evaluate(plant)
        return await act(name, action, **more)

    return acting


async def test_children_are_copies_where_a_page_can_be_copied(notes_base: Path, tmp_path: Path) -> None:
    """What scripts count in a variable is in no snapshot: it is counted again in each child."""
    async with running(notes_base, tmp_path, "record") as engine:
        env = await engine.create("a")
        for action in (CANVAS, COUNT, COUNT, DRAW):
            await env.act(action)
        counted = await engine.fork("a#3", n=3)
        fresh = await engine.fork("a#1", n=3)
        for children, times in ((counted, "2"), (fresh, "0")):
            assert [child.made.verdict for child in children if child.made is not None] == ["exact-observed"] * 3
            for child in children:
                assert f'paragraph: "{times}"' in (await child.observe()).text
        assert ways(counted) == ["", "", ""]
        assert ways(fresh) == ["", fresh[0].name, fresh[0].name]
        told = [record.event async for record in engine.journal.read() if isinstance(record.event, ReplayVerdict)]
        assert sorted((one.child, one.copied_from) for one in told) == sorted(
            (child.name, way) for child, way in zip((*counted, *fresh), ways([*counted, *fresh]), strict=True)
        )


def ways(children: list[Environment]) -> list[str]:
    """From whom each child was copied; empty: the actions were done in it."""
    return [child.made.copied_from for child in children if child.made is not None]
