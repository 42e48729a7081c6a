"""Faults planted in the real engine, to show that the simulation sees them.

Each takes away one thing that the engine does right, and says which rules must be found broken, and within how many
seeds from 0. Where the engine's own assertions would stop a fault at once, it goes round them, as far as that
is possible: what is wanted is that it is seen from outside.
"""

from __future__ import annotations

from collections.abc import Mapping

from statefork.simulation.mutants import content, leases, recovery, slots
from statefork.simulation.mutants.planting import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "content", "leases", "planted", "recovery", "slots"]


def planted(name: str) -> Mapping[str, Mutant]:
    """The mutant of this name, or all of them for an empty one. Raises KeyError."""
    return {name: MUTANTS[name]} if name else MUTANTS
