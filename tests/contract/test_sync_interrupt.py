"""Ctrl-C under the synchronous face: the work is cancelled, nothing hangs, and everything is parked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import statefork
from statefork.engine.capsule import Phase
from statefork.journal.events import ActionEnded, EngineStopped, Event
from statefork.journal.store import open_state
from statefork.replay.rebuild import rebuild

PROGRAM = Path(__file__).with_name("sync_interrupted.py")
SECONDS_MAX = 60.0
CONTRACT = """
[contract]
name = "notes"
[resources.page]
adapter = "memory"
"""
BUILD = """
def recipe_digest():
    return "0" * 64

def build(directory, progress):
    print("now", flush=True)
    while True:
        progress(0.5, "half of it")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.toml").write_text(CONTRACT)
    (tmp_path / "built.toml").write_text(CONTRACT.replace('"notes"', '"built"\nbuild = "endless"', 1))
    (tmp_path / "endless.py").write_text(BUILD)
    return tmp_path


def interrupt(scenario: str, folder: Path, *, times: int = 1) -> dict[str, Any]:
    """Run a program, press Ctrl-C each time it says ``now``, and return what it told at its end."""
    command = [sys.executable, str(PROGRAM), scenario, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdin is not None
            for _ in range(times):
                assert program.stdout.readline() == "now\n", program.communicate(timeout=SECONDS_MAX)[1]
                program.send_signal(signal.SIGINT)
            said, faults = program.communicate("\n", timeout=SECONDS_MAX)
        finally:
            program.kill()
    assert program.returncode == 0, faults
    assert "Traceback" not in faults
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert told.pop("threads") == [], "the engine's thread has ended"
    return told


def history(folder: Path) -> tuple[list[Event], dict[str, Phase]]:
    """What was journaled, and the phase of each environment; the audit is clean."""

    async def read() -> tuple[list[Event], dict[str, Phase]]:
        async with open_state(folder / "state", write=False) as state:
            events = [recorded.event async for recorded in state.journal.read()]
            world = await rebuild(state.journal)
            return events, {name: capsule.phase for name, capsule in world.environments.items()}

    assert statefork.audit(folder / "state").clean
    return anyio.run(read, backend="trio")


def outcomes(events: list[Event]) -> list[str]:
    """How the actions ended."""
    return [event.outcome for event in events if isinstance(event, ActionEnded)]


def test_given_an_action_when_interrupted_then_it_is_cancelled_and_the_environment_goes_on(folder: Path) -> None:
    assert interrupt("in_a_call", folder) == {"interrupted": True, "kept": "tea", "ref": "a@2"}
    events, phases = history(folder)
    assert outcomes(events) == ["ok", "unknown", "ok"]
    assert isinstance(events[-1], EngineStopped)
    assert phases == {"a": Phase.PARKED}


def test_given_an_action_when_the_interrupt_leaves_the_block_then_everything_is_parked(folder: Path) -> None:
    assert interrupt("out_of_the_block", folder) == {"out": True}
    events, phases = history(folder)
    assert outcomes(events) == ["ok", "unknown"]
    assert isinstance(events[-1], EngineStopped)
    assert phases == {"a": Phase.PARKED}


def test_given_an_evaluator_when_interrupted_then_it_stops_and_its_lease_is_free(folder: Path) -> None:
    assert interrupt("in_a_check", folder) == {"interrupted": True, "score": 1.0, "ref": "a@1"}
    assert history(folder)[1] == {"a": Phase.PARKED}


def test_given_a_lent_page_when_interrupted_then_its_action_is_unknown_and_its_lease_is_free(folder: Path) -> None:
    assert interrupt("in_a_page", folder) == {"interrupted": True, "kept": {"kept": "tea"}, "ref": "a@2"}
    events, phases = history(folder)
    assert outcomes(events) == ["ok", "unknown"]
    assert phases == {"a": Phase.PARKED}


def test_given_a_closing_engine_when_interrupted_again_then_it_parks_all_the_same(folder: Path) -> None:
    assert interrupt("twice", folder, times=2) == {"out": True}
    events, phases = history(folder)
    assert isinstance(events[-1], EngineStopped)
    assert phases == {"a": Phase.PARKED}


def test_given_a_base_being_built_when_interrupted_then_opening_ends(folder: Path) -> None:
    assert interrupt("while_building", folder) == {"out": True}
    with statefork.sync.open_engine(folder / "notes.toml", state=folder / "state") as engine:
        assert engine.environments() == [], "the state directory is free again"
