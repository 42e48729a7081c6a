"""Tasks of WebArena's form score by the real libwebarena and libvisualwebarena as they do on private stacks: in any
order, and several at once."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import anyio
import pytest

from statefork.adapters.interfaces import webarena
from statefork.adapters.interfaces.python import open_engine
from statefork.replay.auditing import audit
from tests.integration.venv_kit import venv_of
from tests.integration.webarena_kit import REQUIREMENTS, Ways, evaluators, expected, needs_sites, scores

pytestmark = needs_sites

DONE_WRONGLY = ("1", "2", "4", "6", "15", "16", "24", "26", "28")
"""Of each kind of evaluator some; all of them are at least done rightly."""

ON_PRIVATE_STACKS = {"shop-private": "6", "tracker-private": "16", "wiki-private": "24"}


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def test_tasks_on_shared_servers(tmp_path: Path) -> None:
    ways: Ways = [(name, "right") for name in webarena.packaged()] + [(name, "wrong") for name in DONE_WRONGLY]
    async with open_engine("office", state=tmp_path / "state") as engine, evaluators(at_once=8) as judges:
        assert await scores(engine, judges, ways, lanes=4, seed=1) == expected(ways)
    assert audit(tmp_path / "state").clean


async def test_the_same_on_private_stacks(tmp_path: Path) -> None:
    async def on(world: str, name: str) -> None:
        ways: Ways = [(name, "right"), (name, "wrong")]
        async with open_engine(world, state=tmp_path / world) as engine:
            assert await scores(engine, judges, ways, lanes=1, seed=2) == expected(ways)

    async with evaluators() as judges, anyio.create_task_group() as worlds:
        for world, name in ON_PRIVATE_STACKS.items():
            worlds.start_soon(on, world, name)


@pytest.mark.parametrize(("package", "file"), [("webarena", "test.raw.json"), ("visualwebarena", "test_raw.json")])
def test_the_benchmarks_own_tasks_are_read(package: str, file: str) -> None:
    python = venv_of(REQUIREMENTS)
    where = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).submodule_search_locations[0])"
    found = subprocess.run([python, "-c", where, package], capture_output=True, text=True, check=True)
    tasks = webarena.load_tasks(Path(found.stdout.strip()) / file)
    assert len(tasks) == {"webarena": 812, "visualwebarena": 910}[package]
    assert {task.package for task in tasks.values()} == {package}


def test_this_process_has_none_of_the_packages() -> None:
    assert importlib.util.find_spec("webarena") is None, "their pins clash with ours"
