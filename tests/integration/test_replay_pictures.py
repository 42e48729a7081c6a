"""What went otherwise is shown in pictures: by a real browser, also where a contract takes none with each action."""

from __future__ import annotations

import builtins
import shutil
import sqlite3
from pathlib import Path

import anyio
import pytest

from statefork.adapters.interfaces.cli import replay as command
from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.python import open_engine
from tests.integration.drain_kit import CONTRACT, SQLITE
from tests.integration.web_kit import PROJECT

image = pytest.importorskip("PIL.Image", reason="pictures need Pillow: pip install 'statefork[pictures]'")
pytestmark = [pytest.mark.anyio, pytest.mark.browser]

GOTO = {"type": "goto", "url": "http://notes.example/notes/"}
BROWSER = """
[resources.browser]
adapter = "browser"
depends_on = ["site"]
width = 400
height = 300
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


def contract(folder: Path, more: str) -> Path:
    """The notes project and a browser."""
    text = CONTRACT.replace("DATABASE", SQLITE).replace("SETTINGS", "notes.settings").replace("HOST", "notes.example")
    (folder / "notes.toml").write_text(text.replace("PROJECT", str(PROJECT)) + BROWSER + more)
    return folder / "notes.toml"


@pytest.mark.parametrize("screenshots", ["true", "false"])
async def test_a_difference_is_drawn(
    notes_base: Path,
    tmp_path: Path,
    screenshots: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(notes_base, tmp_path, dirs_exist_ok=True)
    file = contract(tmp_path, f"screenshots = {screenshots}\n")
    async with open_engine(file, state=tmp_path / "state") as engine, serve_control(engine):
        env = await engine.create("a")
        for _ in range(3):
            await env.act(GOTO)

        def plant(_prompt: str) -> str:
            """Between the first and the second action of the replay, while it halts."""
            with sqlite3.connect(str(engine.environment("a-r1").bindings["db"].address["path"])) as raw:
                raw.execute("INSERT INTO notes_note (title, body) VALUES ('planted', 'here')")
            return "c"

        monkeypatch.setattr(command, "somebody_is_there", lambda: True)
        monkeypatch.setattr(builtins, "input", plant)
        line = ["replay", "a", "--step", "--keep", "--state", str(engine.state)]
        assert await anyio.to_thread.run_sync(invoke, line) == 1
        told = capsys.readouterr().out
        assert "first divergence: action 2 (goto): another page content" in told
        assert "planted" in told
        assert "#3" not in told
        folder = engine.state / "screenshots" / "a-r1"
        assert image.open(folder / "seen.png").size == (400, 300)
        if screenshots == "true":
            assert f"pictures: {folder / 'difference.png'} (recorded, seen, and " in told
            assert image.open(folder / "difference.png").width > 3 * 400
        else:
            assert "there is a screenshot of what was seen only" in told
            assert not (folder / "difference.png").exists()
        await engine.environment("a-r1").retire()
