"""The simulation over many seeds. A failure is run again by its own test name: the seed stands in brackets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
import trio.testing
from trio._core import _run

from tests.simulation.simulator import Simulation

SEEDS = range(60)


@pytest.fixture(autouse=True)
def seeded_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """trio shuffles what is ready to run; here it shuffles the same way for the same seed."""
    monkeypatch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    state = _run._r.getstate()
    yield
    _run._r.setstate(state)


def simulate(seed: int) -> tuple[str, list[str]]:
    _run._r.seed(seed)
    simulation = Simulation(seed)
    try:
        fingerprint = trio.run(simulation.run, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(simulation.trace[-60:]))
        raise
    return fingerprint, simulation.trace


@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="statefork.engine")
    simulate(seed)


def test_a_seed_gives_the_same_run_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="statefork.engine")
    for seed in (3, 5, 8):
        first, second = simulate(seed), simulate(seed)
        assert first[1] == second[1]
        assert first[0] == second[0]
