"""What is chosen for an environment, as sentences: given what happened, when somebody chooses, then this follows."""

from __future__ import annotations

import pytest

from statefork.engine.capsule import Chosen, Phase
from statefork.engine.commands import Begin, Choose, Command, Retire
from statefork.engine.errors import ContractError, EnvironmentFrozen, EnvironmentRetired, NotReady, UnknownEnvironment
from statefork.engine.policy import Choice
from statefork.journal.events import PolicyChosen
from tests.unit.test_transitions import AT, ENV, Given, activate, begin, create, park, publish, recover, retire

PARKED = (create(), publish("v1"))
SERVING = (*PARKED, activate(1))


def choose(snapshots: str | None = None, retention: str | None = None, at: float = AT) -> Choose:
    return Choose(env=ENV, at=at, choice=Choice(snapshots=snapshots, retention=retention))


def chosen(snapshots: str = "", retention: str = "", at: float = AT) -> PolicyChosen:
    return PolicyChosen(at=at, env=ENV, snapshots=snapshots, retention=retention)


@pytest.mark.parametrize(("past", "phase"), [(PARKED, Phase.PARKED), (SERVING, Phase.SERVING)])
def test_each_event_says_all_of_it_and_changes_no_phase(past: tuple[Command, ...], phase: Phase) -> None:
    then = Given(*past).when(choose("every action"), choose(retention="last 3", at=9.0), choose("", at=11.0))
    assert then.error is None
    assert then.events == [
        chosen("every action"),
        chosen("every action", "last 3", at=9.0),
        chosen("", "last 3", at=11.0),
    ]
    assert then.capsule.phase is phase
    assert then.capsule.snapshots == Chosen(text="", at=11.0)
    assert then.capsule.retention == Chosen(text="last 3", at=9.0)


@pytest.mark.parametrize(
    "again",
    [
        choose(),
        choose("every action"),
        choose("every 1 actions"),
        choose("every action", "last 3"),
        choose(retention="last 3", at=99.0),
    ],
)
def test_what_holds_already_makes_no_event(again: Choose) -> None:
    then = Given(*SERVING, choose("every action", "last 3")).when(again)
    assert (then.events, then.error) == ([], None)


def test_as_the_contract_says_is_what_holds_from_the_first() -> None:
    then = Given(*PARKED).when(choose("", ""))
    assert then.events == []
    assert (then.capsule.snapshots, then.capsule.retention) == (Chosen(), Chosen())


@pytest.mark.parametrize("past", [(begin("reset"), publish("v2", activation=2)), (recover(),), (park(),), (retire(),)])
def test_it_stays_whatever_becomes_of_the_content(past: tuple[Command, ...]) -> None:
    then = Given(*SERVING, choose("every action", "last 3")).when(*past)
    assert then.error is None
    assert (then.capsule.snapshots.text, then.capsule.retention.text) == ("every action", "last 3")


@pytest.mark.parametrize(
    ("past", "error"),
    [
        ((), UnknownEnvironment),
        ((create(),), NotReady),
        ((*SERVING, begin("snapshot")), EnvironmentFrozen),
        ((*PARKED, Begin(env=ENV, at=AT, transition="t9", op="reset")), EnvironmentFrozen),
        ((*SERVING, Retire(env=ENV, at=AT)), EnvironmentRetired),
    ],
)
def test_where_nothing_can_be_chosen(past: tuple[Command, ...], error: type[Exception]) -> None:
    then = Given(*past).when(choose("every action"))
    assert isinstance(then.error, error)
    assert then.events == []


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        (choose("sometimes"), "snapshots"),
        (choose("every action", "some"), "retention"),
        (choose("last 3"), "snapshots"),
        (choose("contract"), "snapshots"),
    ],
)
def test_what_is_no_policy_is_refused_with_its_place(wrong: Choose, key: str) -> None:
    then = Given(*SERVING).when(wrong)
    assert isinstance(then.error, ContractError)
    assert then.error.facts["key"] == key
    assert then.events == []
