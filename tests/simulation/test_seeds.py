"""The simulation over the seeds of the ordinary run, a few to a test so that several processes share them.

More of them: ``statefork simulate --seeds 100000``.
"""

from __future__ import annotations

import pytest

from statefork.simulation.many import Options, run_one
from statefork.simulation.run import Outcome

SEEDS = 200
SEEDS_A_TEST = 10


def assert_clean(outcome: Outcome) -> None:
    """Fail with the trace, and with the one command that gives the run again."""
    if outcome.rule:
        trace = "\n".join(outcome.trace[-60:])
        pytest.fail(f"{trace}\n{outcome.message}\nAgain: {Options().command(outcome.seed)}", pytrace=False)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_every_rule_holds(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        assert_clean(run_one(seed))


@pytest.mark.parametrize("seed", [1, 2])
def test_fifty_environments_in_few_slots(seed: int) -> None:
    outcome = run_one(seed, Options(environments=(50, 50), lives=2))
    assert_clean(outcome)
    assert outcome.environments > 30
