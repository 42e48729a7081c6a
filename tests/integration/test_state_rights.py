"""Who may read a state directory: the user of its engine, whatever the umask lets others do."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import statefork
from statefork.adapters.interfaces.control.server import serve_control
from tests.contract.process_kit import SERVER
from tests.contract.sqlite_kit import make_base

pytestmark = pytest.mark.anyio

CONTRACT = """
[contract]
name = "kept"
[resources.db]
adapter = "sqlite"
base = "db.sqlite3"
[resources.media]
adapter = "files"
base = "media"
[resources.tracker]
adapter = "process"
command = {command}
host = "tracker.example"
ready = "http /ready"
"""
HARMLESS = ("lock", "runtimes/*")  # who has it open, and numbers of processes


@pytest.fixture(autouse=True)
def everybody_may_read() -> Iterator[None]:
    """As most machines have it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable_by_others(state: Path) -> list[str]:
    """Files that a user who is not the engine's gets at."""
    found, pending = [], [state]
    while pending:
        folder = pending.pop()
        for place in folder.iterdir():
            mode = place.lstat().st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IXOTH:
                pending.append(place)
            elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
                found.append(place.relative_to(state).as_posix())
    return sorted(found)


async def test_nobody_else_reads_what_environments_hold_or_did(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "picture").write_text("a picture")
    make_base(tmp_path / "db.sqlite3")
    command = json.dumps([sys.executable, "-I", "-S", str(SERVER), "{data}", "{port}"])
    (tmp_path / "kept.toml").write_text(CONTRACT.format(command=command))
    state = tmp_path / "state"
    async with statefork.open_engine(tmp_path / "kept.toml", state=state) as engine, serve_control(engine):
        env = await engine.create("a")
        async with httpx.AsyncClient(base_url=env.base_url(), trust_env=False) as client:
            assert (await client.put("/keys/key", content="value")).status_code == 200
        await env.snapshot()
        engine.blobs.put(b"what was seen")
        await engine.fork("a", n=1)
        assert [name for name in readable_by_others(state) if not any(Path(name).match(one) for one in HARMLESS)] == []
        assert stat.S_IMODE((state / "control.sock").stat().st_mode) == 0o600
    assert [name for name in readable_by_others(state) if not any(Path(name).match(one) for one in HARMLESS)] == []


async def test_directories_of_an_older_engine_are_closed_when_they_are_opened(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "picture").write_text("a picture")
    text = '[contract]\nname = "kept"\n[resources.media]\nadapter = "files"\nbase = "media"\n'
    (tmp_path / "kept.toml").write_text(text)
    state = tmp_path / "state"
    for folder in ("layers", "sealed", "branches"):
        (state / "resources" / "media" / folder).mkdir(parents=True)
    async with statefork.open_engine(tmp_path / "kept.toml", state=state) as engine:
        await engine.create("a")
        assert stat.S_IMODE((state / "resources" / "media").stat().st_mode) == 0o700
