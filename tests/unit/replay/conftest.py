"""Fixtures for tests of the past."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from tests.unit.replay.story import Story
from tests.unit.replay.true_state import live


@pytest.fixture
def story() -> Story:
    """A clean history with everything in it: actions, a snapshot, a restore, forks, an evaluation, an abort."""
    told = Story()
    told.create("a")
    told.act("a")
    told.given("a")
    told.act("a")
    told.snapshot("a")
    told.act("a")
    told.evaluated("a")
    told.fork("a", "b", generation=2)
    told.act("b")
    told.switch("a", "restore", ("a", 1))
    told.refused("a", epoch=1, detail="epoch 1, now 3")
    told.act("a")
    told.fork("a", "c", generation=2, how="clone")
    told.act("c")
    told.create("d")
    told.act("d")
    told.snapshot("d")
    told.begun("d")
    told.revoked("d")
    told.ended("d", outcome="unknown")
    told.fail("d", "reset", ("d", 1))
    told.act("d")
    told.snapshot("c")
    told.act("c")
    told.snapshot("c")
    told.marked("c", 3, "here")
    told.chosen("c", retention="last 1")
    told.pruned("c", (2, 1, 1), by="policy")
    return told


@pytest.fixture
def new_story() -> type[Story]:
    """For tests that tell their own."""
    return Story


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory that every test gets a copy of."""
    state = tmp_path_factory.mktemp("audit") / "state"
    state.mkdir()
    anyio.run(live, state, backend="trio")
    return state


@pytest.fixture
def state(template: Path, tmp_path: Path) -> Path:
    """A true state directory, to be damaged."""
    for name in ("notes.sqlite3", "media"):  # the bases, for those who open an engine on it
        source = template.parent / name
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, tmp_path / name)
    return Path(shutil.copytree(template, tmp_path / "state", symlinks=True))
