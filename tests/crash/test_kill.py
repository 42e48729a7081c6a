"""SIGKILL at every boundary of everything the engine does; then the old or the new generation, whole.

The matrix is not written down anywhere: ``scenarios.py`` says what the engine is doing, a recording run enumerates the
boundaries that are really passed meanwhile (see ``boundaries.py``), and the first test here fails when the transition
table has a row that no scenario passes. ``examine.py`` says what must hold after each kill.

Boundaries between which nothing was written leave the same disk, and are one. What fails half-way passes the same
boundaries in the same state as what succeeds, until it fails: these are met there (see ``until_then``). Of the steps on
the disk *within* a call of an adapter an ordinary run takes every fourth, always the same; ``STATEFORK_CRASH=all``
kills at every boundary. That takes most of an hour of one core (``-o faulthandler_timeout=0`` keeps it from telling of
each long test).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from statefork.engine.ports import Portable, Resource
from statefork.engine.transitions import TABLE, tag
from tests.crash.boundaries import CALLS
from tests.crash.hands import Facts
from tests.crash.kill_kit import Moments, Stage, Zygote
from tests.crash.scenarios import SCENARIOS, Scenario

EVERYWHERE = os.environ.get("STATEFORK_CRASH") == "all"
EVERY = 4
READING = {"strategy", "write_mark", "inventory", "digest", "diff", "usage", "pack", "name", "adapter"}

pytestmark = pytest.mark.timeout(6000 if EVERYWHERE else 600)


def chosen(scenario: str, moments: list[Moments]) -> list[Moments]:
    """Where to kill: between calls and appends, and on the disk within them."""
    if EVERYWHERE:
        return [Moments((name,), one.number) for one in moments for name in one.names]
    return [
        one
        for one in moments
        if not one.only_within_a_call or zlib.crc32(f"{scenario} {one.last}".encode()) % EVERY == 0
    ]


def since_it_failed(scenario: Scenario, moments: list[Moments]) -> list[Moments]:
    """The moments that no other scenario meets."""
    if not scenario.until_then or EVERYWHERE:
        return moments
    (failed,) = (number for number, one in enumerate(moments) if set(scenario.fail) & set(one.names))
    return moments[failed:]


def staged(zygote: Zygote, folder: Path, scenario: str) -> tuple[Stage, list[Moments]]:
    """A scenario, ready to be killed, and the boundaries that it passes."""
    stage = Stage(zygote, folder, scenario)
    stage.prepare()
    with stage.state() as state:
        return stage, stage.recorded("run", state)


def kill_and_look(stage: Stage, where: list[Moments], do: str, first: Callable[[Path], Facts | None]) -> None:
    """Kill an engine at each of these boundaries.

    What runs side by side does not pass the same ones in every run: where one never comes, the one that is passed as
    the same in number is taken instead.
    """
    for one in where:
        for kill in (one.last, one.last, f"{one.number}th"):
            with stage.state() as state:
                facts = stage.killed(do, state, kill, first(state))
                if facts is not None:
                    stage.examine(state, facts, f"{kill} ({do})")
                    break


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_anywhere(zygote: Zygote, stage_folder: Path, scenario: str) -> None:
    stage, moments = staged(zygote, stage_folder, scenario)
    where = chosen(scenario, since_it_failed(SCENARIOS[scenario], moments))
    kill_and_look(stage, where, "run", lambda state: None)


def test_no_row_of_the_table_and_no_call_of_an_adapter_is_forgotten(zygote: Zygote, stage_folder: Path) -> None:
    table = {(row.frm.value, tag(row.event), op) for row in TABLE for op in (row.ops or ("",))}
    passed: set[tuple[str, str, str]] = set()
    calls: set[str] = set()
    boundaries: dict[str, list[str]] = {}
    for number, scenario in enumerate(SCENARIOS):
        folder = stage_folder / str(number)
        folder.mkdir()
        stage = Stage(zygote, folder, scenario)
        said = stage.prepare()
        with stage.state() as state:
            said += stage.well("run", state)
            since = max((one["since"] for one in said if "since" in one), default=0)
            until = min((one["until"] for one in said if "until" in one), default=1 << 60)
            passed |= {tuple(one["row"]) for one in stage.well("rows", state) if since < one["at"] <= until}
            boundaries[scenario] = [name for one in said for name, _ in one.get("passed", ())]
            calls |= set(map(call_of, boundaries[scenario]))
    assert passed <= table
    forgotten = "\n".join(map(str, sorted(table - passed)))
    assert not forgotten, f"no scenario passes these rows of the table while the engine may be killed:\n{forgotten}"
    ports = {name for port in (Resource, Portable) for name in vars(port) if not name.startswith("_")}
    ports |= set(Resource.__annotations__)
    assert ports - READING == set(CALLS), "a method that changes something is watched"
    wanted = {f"{when} {call} of {name}" for when in ("before", "after") for call in CALLS for name in ("db", "media")}
    assert wanted - calls == set()

    for name, scenario in SCENARIOS.items():
        if scenario.until_then:
            (fails,) = scenario.fail
            first = boundaries[name][: boundaries[name].index(fails)]
            assert set(first) <= set(boundaries[scenario.until_then]), name


def call_of(boundary: str) -> str:
    """Of which call it is, whoever that was for."""
    return boundary.partition(" for ")[0].partition(" #")[0]


# Where the first engine is killed (how the boundary's name begins), so that the second has a lot to recover.
HALF_DONE = {
    "several at once": "before bind of media for other",
    "fork": "before append of GenerationPublished(fork) of right",
    "first opening": "before append of BaseProvisioned",
}


@pytest.mark.parametrize("scenario", HALF_DONE)
def test_killed_while_it_recovers(zygote: Zygote, stage_folder: Path, scenario: str) -> None:
    stage, passed = staged(zygote, stage_folder, scenario)
    where = next(name for one in passed for name in one.names if name.startswith(HALF_DONE[scenario]))

    def half_done(state: Path) -> Facts:
        facts = stage.killed("run", state, where)
        assert facts is not None
        return facts

    with stage.state() as state:
        moments = stage.recorded("reopen", state, facts=half_done(state))
    kill_and_look(stage, chosen(scenario, moments), "reopen", half_done)
