"""One seed is one run, bit for bit: again, in another process, with other hashes of text."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from statefork.simulation.many import Options, run_many, run_one
from statefork.simulation.mutants import MUTANTS

SEEDS = (3, 5, 8, 13, 21, 34)

_SCRIPT = """
import json, sys
from statefork.simulation.many import run_one
print(json.dumps([run_one(int(seed)).fingerprint for seed in sys.argv[1:]]))
"""


def fingerprints_elsewhere(hash_seed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, *map(str, SEEDS)],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    processes = [fingerprints_elsewhere(hash_seed) for hash_seed in ("1", "4242")]
    here = [run_one(seed).fingerprint for seed in SEEDS]
    for process in processes:
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert json.loads(told) == here
    assert len(set(here)) == len(SEEDS)


def test_a_failure_is_found_again_by_its_seed() -> None:
    options = Options(mutant="write-lost")
    first, second = run_one(1, options), run_one(1, options)
    assert first.rule
    assert (first.rule, first.message, first.trace) == (second.rule, second.message, second.trace)
    assert run_one(1).fingerprint == run_one(1).fingerprint, "a mutant leaves nothing behind"


def test_several_processes_find_what_one_finds() -> None:
    alone = {outcome.seed: outcome.fingerprint for outcome in run_many(range(3))}
    together = {outcome.seed: outcome.fingerprint for outcome in run_many(range(3), jobs=2)}
    assert alone == together


def test_a_planted_fault_is_taken_out_again() -> None:
    for mutant in MUTANTS.values():
        with mutant.plant():
            pass
    assert not run_one(1).rule
