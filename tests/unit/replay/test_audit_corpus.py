"""Every rule has a corpus of true journals with one damage each; the audit finds and names it, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from statefork.replay.audit.run import CHECKERS
from tests.unit.replay import damage_lives, damage_manifests, damage_operations, damage_retention
from tests.unit.replay.damage import CORPUS, Damage
from tests.unit.replay.told import Told
from tests.unit.replay.true_journal import true_events

assert damage_lives
assert damage_manifests
assert damage_operations
assert damage_retention

RULES = [f"I{number}" for number in range(1, 13)]
EACH_MIN = 6


def test_the_true_journal_is_clean_and_gives_every_checker_something_to_look_at() -> None:
    report = Told(true_events()).audit()
    assert report.clean, list(report.lines())
    assert {checked.invariant for checked in report.checked} == set(RULES)
    assert all(checked.looked_at for checked in report.checked), report.checked


def test_every_rule_has_a_corpus() -> None:
    sizes = Counter(damage.invariant for damage in CORPUS)
    assert sorted(sizes) == sorted(RULES)
    assert min(sizes.values()) >= EACH_MIN, sizes
    alone = Counter(damage.invariant for damage in CORPUS if not damage.also)
    assert min(alone[rule] for rule in RULES) >= EACH_MIN - 2, "most damages break one rule only"


@pytest.mark.parametrize("damage", CORPUS, ids=lambda damage: damage.name)
def test_it_is_found_and_named(damage: Damage) -> None:
    told = Told(true_events())
    at = damage.break_it(told)
    report = told.audit()
    assert not report.unreadable
    assert {finding.invariant for finding in report.findings} == {damage.invariant, *damage.also}, report.findings
    position = told.position(at) if at is not None else 0
    found = [
        finding.sentence
        for finding in report.findings
        if (finding.invariant, finding.position) == (damage.invariant, position)
    ]
    assert any(all(words in sentence for words in damage.words) for sentence in found), found
    assert report.exit_code == 1


@pytest.mark.parametrize("damage", CORPUS, ids=lambda damage: damage.name)
def test_without_its_checker_it_goes_unnoticed(damage: Damage) -> None:
    """So every corpus proves its checker, and no checker lives on another's findings."""
    told = Told(true_events())
    damage.break_it(told)
    others = tuple(checker for checker in CHECKERS if checker.invariant != damage.invariant)
    assert len(others) < len(CHECKERS)
    assert {finding.invariant for finding in told.audit(others).findings} == damage.also
