"""Faults planted in the engine are caught, each within its number of seeds, and by a rule that it breaks.

The seeds are those of test_seeds.py, where the engine as it is passes all of them.
"""

from __future__ import annotations

import pytest

from statefork.simulation.many import catch, run_one
from statefork.simulation.mutants import MUTANTS
from statefork.simulation.violation import RULES
from tests.simulation.test_seeds import SEEDS, assert_clean


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    took, caught = catch(mutant)
    assert caught is not None, f"{name} survived {took} seeds: {mutant.fault}"
    assert_clean(run_one(caught.seed))


def test_each_says_what_it_breaks_and_how_soon_that_is_seen() -> None:
    assert len(MUTANTS) >= 15
    for mutant in MUTANTS.values():
        assert mutant.fault, mutant.name
        assert mutant.rules, mutant.name
        assert mutant.rules <= RULES.keys(), mutant.name
        assert 1 <= mutant.within <= SEEDS, f"{mutant.name}: only these seeds are known to be clean without it"
