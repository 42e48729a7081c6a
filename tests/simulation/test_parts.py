"""The simulation's own parts: its plans, its witnesses, its command."""

from __future__ import annotations

import json

import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.simulation.many import Options
from statefork.simulation.model import Witness
from statefork.simulation.plan import WEIGHTS, Plan
from statefork.simulation.run import KINDS
from statefork.simulation.violation import RULES, Violation, rule_of


def test_every_kind_of_work_has_a_weight() -> None:
    assert KINDS.keys() == WEIGHTS.keys()


def test_seeds_differ_in_what_they_are_about() -> None:
    plans = [Plan.of(seed) for seed in range(200)]
    assert min(plan.environments for plan in plans) == 3
    assert max(plan.environments for plan in plans) > 40
    assert {bool(plan.slots) for plan in plans} == {True, False}
    assert all(plan.slots < plan.environments for plan in plans)
    for kind in WEIGHTS:
        chosen = sum(kind in plan.weights for plan in plans)
        assert chosen > 100, kind


def test_what_is_given_replaces_what_the_seed_would_choose() -> None:
    plan = Plan.of(7, environments=(9, 9), steps=2, lives=4)
    assert (plan.environments, plan.steps, plan.lives) == (9, 2, 4)
    assert len(plan.trouble) == len(plan.crash_within) == 4


def test_a_witness_is_read_as_it_was_written() -> None:
    witness = Witness("shop-1", 3, 17, "lease")
    assert Witness.read(str(witness)) == witness
    assert Witness.read("hello from db") is None
    assert Witness.read(5) is None


def test_assertions_name_their_rule() -> None:
    assert rule_of(Violation("cut", "torn")) == "cut"
    assert rule_of(AssertionError("I3: publish while a lease is live")) == "I3"
    assert rule_of(AssertionError("a gate is shut once at a time")) == "assertion"
    with pytest.raises(AssertionError):
        Violation("nonsense", "no such rule")
    assert "I11" in RULES


def test_the_command_that_gives_a_run_again() -> None:
    assert Options().command(5) == "statefork simulate --seed 5"
    options = Options(environments=(20, 50), steps=3, lives=1, mutant="write-lost")
    assert (
        options.command(5) == "statefork simulate --seed 5 --environments 20-50 --steps 3 --lives 1 --mutant write-lost"
    )


def test_the_command_line_tells_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "--seeds", "2", "--steps", "2", "--lives", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seeds"] == 2
    assert told["failures"] == []
    assert invoke(["simulate", "--seed", "1", "--steps", "2", "--lives", "1"]) == 0
    assert "every rule held" in capsys.readouterr().out


def test_the_command_line_tells_a_failure_and_how_to_get_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke(["simulate", "--mutant", "write-lost", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    seed = row["seeds"] - 1  # the first that shows it
    assert invoke(["simulate", "--seed", str(seed), "--mutant", "write-lost"]) == 1
    assert f"seed {seed}: cut: " in capsys.readouterr().out
    from statefork.simulation import many

    run_one = many.run_one
    monkeypatch.setattr(many, "run_one", lambda seed, options: run_one(seed, Options(mutant="write-lost")))
    assert invoke(["simulate", "--seeds", str(seed + 2)]) == 1
    told = capsys.readouterr().out
    assert f"Again: statefork simulate --seed {seed}\n" in told
    assert "1 seed failed" in told


def test_the_command_line_knows_mutants_and_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "--mutant", "manifest-misses-one", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["caught"]
    assert row["rule"] == "I4"
    assert invoke(["simulate", "--mutant", "nonsense"]) == 2
    assert "publish-before-drain" in capsys.readouterr().err
    for wrong in ("0-3", "5-2", "many"):
        assert invoke(["simulate", "--environments", wrong]) == 2
    assert "is no range" in capsys.readouterr().err
