"""Many seeds, in several processes, and mutants: what the command line and the tests run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from multiprocessing import get_context

import msgspec

from statefork.simulation.mutants import MUTANTS, Mutant
from statefork.simulation.plan import Plan
from statefork.simulation.run import Outcome, simulate

_AHEAD = 4  # runs that wait for each process


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all seeds of one command: it replaces what a seed would have chosen."""

    environments: tuple[int, int] | None = None
    steps: int | None = None
    lives: int | None = None
    mutant: str = ""

    def command(self, seed: int) -> str:
        """The one command that gives this run again."""
        words = ["statefork simulate", f"--seed {seed}"]
        if self.environments is not None:
            words.append(f"--environments {self.environments[0]}-{self.environments[1]}")
        words += [f"--{name} {value}" for name in ("steps", "lives") if (value := getattr(self, name)) is not None]
        words += [f"--mutant {self.mutant}"] if self.mutant else []
        return " ".join(words)


_NO_OPTIONS = Options()


def run_one(seed: int, options: Options = _NO_OPTIONS) -> Outcome:
    """One seed, with the mutant that the options plant."""
    plan = Plan.of(seed, environments=options.environments, steps=options.steps, lives=options.lives)
    with MUTANTS[options.mutant].plant() if options.mutant else nullcontext():
        return simulate(plan)


def run_many(seeds: Iterable[int], options: Options = _NO_OPTIONS, *, jobs: int = 1) -> Iterator[Outcome]:
    """Each seed's outcome, as it comes; of runs in which every rule held without their traces."""
    if jobs <= 1:
        for seed in seeds:
            yield _slim(run_one(seed, options))
        return
    left = iter(seeds)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            running = {pool.submit(_run_slim, seed, options) for seed in itertools.islice(left, jobs * _AHEAD)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                running |= {pool.submit(_run_slim, seed, options) for seed in itertools.islice(left, len(done))}
                yield from sorted(map(_result, done), key=lambda outcome: outcome.seed)
        finally:
            pool.shutdown(cancel_futures=True)


def _result(future: Future[Outcome]) -> Outcome:
    return future.result()


def _run_slim(seed: int, options: Options) -> Outcome:
    return _slim(run_one(seed, options))


def _slim(outcome: Outcome) -> Outcome:
    return outcome if outcome.rule else msgspec.structs.replace(outcome, trace=())


def catch(mutant: Mutant, *, first: int = 0) -> tuple[int, Outcome | None]:
    """Run seeds with the mutant planted until one of its rules is found broken, or it has survived.

    How many seeds that took, and the run in which it was caught; None for a survivor. A run that breaks another rule
    only does not count.
    """
    options = Options(mutant=mutant.name)
    for number in range(mutant.within):
        outcome = run_one(first + number, options)
        if outcome.rule in mutant.rules:
            return number + 1, outcome
    return mutant.within, None
