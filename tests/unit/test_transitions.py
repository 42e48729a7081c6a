"""The transition table, as sentences: given what happened, when somebody wants something, then this follows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from statefork.engine.capsule import Capsule, evolve
from statefork.engine.commands import Abort, Activate, Begin, Command, Found, NoteFork, Park, Publish, Recover, Retire
from statefork.engine.decisions import decide
from statefork.engine.errors import (
    EnvironmentExists,
    EnvironmentFrozen,
    EnvironmentRetired,
    IllegalTransition,
    NotReady,
    StateforkError,
    UnknownEnvironment,
    UnknownRef,
)
from statefork.engine.transitions import TABLE, Phase, diagram, step, tag
from statefork.engine.world import World
from statefork.journal import events as happened
from statefork.journal.events import ActionBegun, ActionEnded, Event, GenerationPublished, TransitionBegun
from statefork.journal.values import Component, Held, Moment, Sealed

ENV = "shop"
AT = 7.0


def component(version: str) -> Component:
    sealed = Sealed(journal="j", resource="db", adapter="memory", version=version)
    return Component(sealed=sealed, durability="authoritative")


def manifest(version: str) -> dict[str, Component]:
    return {"db": component(version)}


# --- commands, as a person would say them ---------------------------------------------------------------------------


def create() -> Found:
    origin = Moment(env=ENV, generation=1)
    return Found(env=ENV, at=AT, transition="t1", contract="c", how="create", origin=origin)


def fork(parent: str, generation: int, actions: int) -> Found:
    return Found(
        env=ENV,
        at=AT,
        transition="t1",
        contract="c",
        how="fork",
        origin=Moment(env=parent, generation=1),
        source=Moment(env=parent, generation=generation),
        inherited_actions=actions,
    )


def begin(op: happened.Operation, source: Moment | None = None) -> Begin:
    return Begin(env=ENV, at=AT, transition=f"t-{op}", op=op, source=source)


def publish(version: str, *, activation: int = 0, source_actions: int = 0, held: tuple[Held, ...] = ()) -> Publish:
    return Publish(
        env=ENV,
        at=AT,
        manifest=manifest(version),
        required=frozenset({"db"}),
        activation=activation,
        source_actions=source_actions,
        held=held,
    )


def abort() -> Abort:
    return Abort(env=ENV, at=AT, code="torn_cut", reason="it was written")


def activate(number: int) -> Activate:
    return Activate(env=ENV, at=AT, activation=number)


def park() -> Park:
    return Park(env=ENV, at=AT)


def retire() -> Retire:
    return Retire(env=ENV, at=AT)


def recover() -> Recover:
    return Recover(env=ENV, at=AT, transition="t-recover")


def note_fork(generation: int) -> NoteFork:
    return NoteFork(env=ENV, at=AT, generation=generation, child="child", how="fork")


def action(number: int) -> ActionBegun:
    return ActionBegun(env=ENV, at=AT, generation=1, epoch=1, activation=1, lease=number, number=number, action={})


# --- given / when / then --------------------------------------------------------------------------------------------


class Given:
    """An environment to which these commands and events have happened."""

    def __init__(self, *past: Command | Event) -> None:
        self.capsule: Capsule | None = None
        for one in past:
            for event in decide(self.capsule, one) if isinstance(one, Command) else (one,):
                self.capsule = evolve(self.capsule, event)

    def when(self, *commands: Command) -> Then:
        capsule, events = self.capsule, list[Event]()
        for command in commands:
            try:
                decided = decide(capsule, command)
            except StateforkError as error:
                return Then(capsule, events, error)
            for event in decided:
                capsule = evolve(capsule, event)
            events.extend(decided)
        return Then(capsule, events, None)


class Then:
    """What followed."""

    def __init__(self, capsule: Capsule | None, events: Sequence[Event], error: StateforkError | None) -> None:
        self._capsule = capsule
        self.events = events
        self.error = error

    @property
    def capsule(self) -> Capsule:
        assert self.error is None, self.error
        assert self._capsule is not None
        return self._capsule

    def then(self, *kinds: str) -> Capsule | None:
        assert self.error is None, self.error
        assert [tag(type(event)).partition("/")[0] for event in self.events] == list(kinds)
        return self._capsule

    def refused(self, kind: type[StateforkError]) -> StateforkError:
        assert type(self.error) is kind, f"{self.error!r} and {self.events}"
        return self.error


def published(event: Event) -> GenerationPublished:
    assert isinstance(event, GenerationPublished)
    return event


CREATED = (create(), publish("v0", activation=1))
PARKED = (*CREATED, park())


def test_create_publishes_generation_one_and_serves() -> None:
    capsule = Given().when(create(), publish("v0", activation=1)).capsule
    assert capsule.phase is Phase.SERVING
    assert (capsule.generation, capsule.epoch, capsule.activation, capsule.actions) == (1, 1, 1, 0)
    assert capsule.origin == capsule.moment
    assert capsule.head.previous is None


def test_create_begins_with_two_events_in_one_append() -> None:
    Given().when(create()).then("environment.created", "transition.begun")


def test_a_first_publish_without_a_slot_parks() -> None:
    assert Given(create()).when(publish("v0")).capsule.phase is Phase.PARKED


def test_a_failed_founding_leaves_the_name_free() -> None:
    assert Given(create()).when(abort()).then("transition.aborted") is None
    assert Given(create(), abort()).when(create(), publish("v0")).capsule.generation == 1


def test_a_name_is_used_once() -> None:
    Given(*CREATED).when(create()).refused(EnvironmentExists)
    Given(*CREATED, retire()).when(create()).refused(EnvironmentExists)
    Given(create()).when(create()).refused(EnvironmentExists)


def test_a_snapshot_continues() -> None:
    then = Given(*CREATED, action(1), action(2)).when(begin("snapshot"), publish("v1"))
    then.then("transition.begun", "transition.drained", "generation.published")
    capsule = then.capsule
    assert capsule.phase is Phase.SERVING
    assert (capsule.generation, capsule.epoch, capsule.activation) == (2, 1, 1)
    assert capsule.head.actions == 2
    assert capsule.head.previous == Moment(env=ENV, generation=1)


def test_a_freeze_names_its_base_and_its_source() -> None:
    origin = Moment(env=ENV, generation=1)
    (begun,) = Given(*CREATED, begin("snapshot"), publish("v1")).when(begin("reset", origin)).events
    assert begun == TransitionBegun(env=ENV, at=AT, transition="t-reset", op="reset", base=2, source=origin)


def test_a_drain_says_what_it_found_open() -> None:
    held = (Held(holder="GET http://shop.example/slow", how="ended", waited_ms=3.0),)
    events = Given(*CREATED, begin("snapshot")).when(publish("v1", held=held)).events
    assert events[0] == happened.TransitionDrained(env=ENV, at=AT, transition="t-snapshot", held=held)


def test_a_reset_switches_to_a_new_epoch_and_activation() -> None:
    origin = Moment(env=ENV, generation=1)
    then = Given(*CREATED, action(1)).when(begin("reset", origin), publish("v0", activation=2))
    then.then("transition.begun", "transition.drained", "generation.published", "environment.activated")
    capsule = then.capsule
    assert capsule.phase is Phase.SERVING
    assert (capsule.generation, capsule.epoch, capsule.activation, capsule.actions) == (2, 2, 2, 0)
    assert capsule.head.previous == origin


def test_a_restore_takes_the_count_of_actions_back() -> None:
    past = (*CREATED, action(1), begin("snapshot"), publish("v1"), action(2), action(3))
    restore = (begin("restore", Moment(env=ENV, generation=2)), publish("v1", activation=2, source_actions=1))
    capsule = Given(*past).when(*restore).capsule
    assert capsule.actions == 1
    assert Given(*past, *restore, action(2)).when(begin("snapshot"), publish("v9")).capsule.head.actions == 2


def test_an_abort_leaves_the_old_generation_serving() -> None:
    capsule = Given(*CREATED, begin("snapshot")).when(abort()).capsule
    assert capsule.phase is Phase.SERVING
    assert (capsule.generation, capsule.transition) == (1, None)


def test_a_parked_environment_is_switched_without_a_slot() -> None:
    origin = Moment(env=ENV, generation=1)
    capsule = Given(*PARKED).when(begin("reset", origin), publish("v0")).capsule
    assert capsule.phase is Phase.PARKED
    assert (capsule.generation, capsule.epoch) == (2, 2)
    assert Given(*PARKED, begin("reset", origin)).when(abort()).capsule.phase is Phase.PARKED


def test_a_parked_environment_serves_again_with_a_new_activation() -> None:
    capsule = Given(*PARKED).when(activate(2)).capsule
    assert (capsule.phase, capsule.activation, capsule.epoch) == (Phase.SERVING, 2, 1)
    Given(*PARKED).when(activate(1)).refused(IllegalTransition)


def test_a_dirty_tail_is_published_and_parked_in_one_append() -> None:
    capsule = Given(*CREATED, action(1)).when(begin("snapshot"), publish("v1"), park()).capsule
    assert (capsule.phase, capsule.generation, capsule.actions) == (Phase.PARKED, 2, 1)


def test_recovery_names_the_lost_actions_and_parks() -> None:
    past = (*CREATED, action(1), begin("snapshot"), publish("v1"), action(2), action(3))
    then = Given(*past).when(recover())
    then.then("transition.begun", "generation.published")
    assert published(then.events[1]).lost_actions == (2, 3)
    assert published(then.events[1]).manifest == manifest("v1")
    capsule = then.capsule
    assert (capsule.phase, capsule.generation, capsule.epoch, capsule.actions) == (Phase.PARKED, 3, 3, 1)
    assert capsule.head.previous == Moment(env=ENV, generation=2)


def test_a_fork_continues_its_parents_lineage() -> None:
    capsule = Given().when(fork("mother", 4, 9), publish("v4", activation=1)).capsule
    assert capsule.actions == capsule.head.actions == 9
    assert capsule.origin == Moment(env="mother", generation=1)
    assert capsule.head.previous == capsule.parent == Moment(env="mother", generation=4)


def test_a_parent_is_told_whatever_it_does_meanwhile() -> None:
    for past in (CREATED, PARKED, (*CREATED, begin("snapshot")), (*CREATED, retire())):
        before = Given(*past).capsule
        assert before is not None
        capsule = Given(*past).when(note_fork(1)).capsule
        assert (capsule.phase, capsule.children) == (before.phase, ("child",))


def test_only_published_generations_have_children() -> None:
    Given(*CREATED).when(note_fork(2)).refused(UnknownRef)


def test_a_manifest_names_every_resource_exactly_once() -> None:
    for names in ({"db", "files"}, set[str](), {"files"}):
        incomplete = Publish(env=ENV, at=AT, manifest=manifest("v1"), required=frozenset(names))
        Given(*CREATED, begin("snapshot")).when(incomplete).refused(NotReady)


def test_what_ends_no_phase_changes_nothing() -> None:
    capsule = Given(*CREATED).capsule
    ended = ActionEnded(env=ENV, at=AT, generation=1, epoch=1, activation=1, lease=1, number=1, outcome="ok")
    assert evolve(capsule, ended) is capsule


def test_an_action_of_nothing_is_no_history() -> None:
    with pytest.raises(UnknownEnvironment):
        evolve(None, action(1))


# --- every pair of a phase and a command ------------------------------------------------------------------------------

_RESET = begin("reset", Moment(env=ENV, generation=1))
PASTS: dict[Phase, tuple[Command | Event, ...]] = {
    Phase.VOID: (),
    Phase.NEW: (decide(None, create())[0],),
    Phase.FOUNDING: (create(),),
    Phase.SERVING: CREATED,
    Phase.DRAINING: (*CREATED, begin("snapshot")),
    Phase.STAGING: (
        *CREATED,
        begin("snapshot"),
        happened.TransitionDrained(env=ENV, at=AT, transition="t-snapshot"),
    ),
    Phase.PARKED: PARKED,
    Phase.SHIFTING: (*PARKED, _RESET),
    Phase.RECOVERING: (*CREATED, TransitionBegun(env=ENV, at=AT, transition="t", op="recover", base=1)),
    Phase.RETIRED: (*CREATED, retire()),
}
COMMANDS: dict[str, Command] = {
    "create": create(),
    "snapshot": begin("snapshot"),
    "reset": _RESET,
    "restore": begin("restore", Moment(env=ENV, generation=1)),
    "publish": publish("v1"),
    "abort": abort(),
    "activate": activate(9),
    "park": park(),
    "retire": retire(),
    "recover": recover(),
    "note fork": note_fork(1),
}
ALLOWED: dict[Phase, set[str]] = {
    Phase.VOID: {"create"},
    Phase.NEW: {"retire"},
    Phase.FOUNDING: {"publish", "abort"},
    Phase.SERVING: {"snapshot", "reset", "restore", "park", "retire", "recover", "note fork"},
    Phase.DRAINING: {"publish", "abort", "note fork"},
    Phase.STAGING: {"abort", "note fork"},
    Phase.PARKED: {"reset", "restore", "activate", "retire", "note fork"},
    Phase.SHIFTING: {"publish", "abort", "note fork"},
    Phase.RECOVERING: {"abort", "note fork"},
    Phase.RETIRED: {"note fork"},
}
REFUSED_WITH: dict[Phase, type[StateforkError]] = {
    Phase.VOID: UnknownEnvironment,
    Phase.NEW: NotReady,
    Phase.FOUNDING: NotReady,
    Phase.SERVING: IllegalTransition,
    Phase.DRAINING: EnvironmentFrozen,
    Phase.STAGING: EnvironmentFrozen,
    Phase.PARKED: IllegalTransition,
    Phase.SHIFTING: EnvironmentFrozen,
    Phase.RECOVERING: EnvironmentFrozen,
    Phase.RETIRED: EnvironmentRetired,
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("wanted", COMMANDS)
def test_every_pair_of_phase_and_command(phase: Phase, wanted: str) -> None:
    given = Given(*PASTS[phase])
    assert (given.capsule.phase if given.capsule is not None else Phase.VOID) is phase
    then = given.when(COMMANDS[wanted])
    if wanted in ALLOWED[phase]:
        assert then.error is None
        assert then.events
    elif wanted == "create":
        then.refused(EnvironmentExists)
    elif wanted == "note fork" and phase in (Phase.NEW, Phase.FOUNDING):
        then.refused(UnknownRef)
    else:
        error = then.refused(REFUSED_WITH[phase])
        assert error.facts["environment"] == ENV
        assert ENV in str(error)


def test_every_row_of_the_table_is_taken_by_step_and_nothing_else_is() -> None:
    rows = {(row.frm, row.event, op) for row in TABLE for op in (row.ops or ("",))}
    assert len(rows) == sum(len(row.ops or ("",)) for row in TABLE), "two rows for one step"
    ended = happened.EnvironmentRetired(env=ENV, at=AT, generation=1)
    for phase in Phase:
        if (phase, happened.EnvironmentRetired, "") in rows:
            assert step(phase, ended) is Phase.RETIRED
        else:
            with pytest.raises(IllegalTransition):
                step(phase, ended)


def test_every_phase_can_be_reached_and_left_except_the_end() -> None:
    reached = {row.to for row in TABLE}
    left = {row.frm for row in TABLE if row.frm is not row.to}
    assert reached == set(Phase)
    assert left == set(Phase) - {Phase.RETIRED}


def test_the_diagram_has_every_row_that_moves() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for row in TABLE:
        if row.frm is not row.to:
            assert any(line.strip().startswith(f"{row.frm.value} --> {row.to.value}: ") for line in lines)


def test_the_world_is_the_fold_of_all_and_forgets_what_never_was() -> None:
    world = World()
    for event in decide(None, create()):
        world.apply(event)
    for event in decide(world.environments[ENV], abort()):
        world.apply(event)
    assert ENV not in world.environments
    assert world.versions[ENV] == 3
    with pytest.raises(UnknownEnvironment):
        world.capsule(ENV)
    with pytest.raises(UnknownRef):
        world.generation(Moment(env=ENV, generation=1))


def test_a_lineage_leads_through_parents_and_past_what_was_abandoned() -> None:
    world = World()
    mother = Given(*CREATED, action(1), begin("snapshot"), publish("v1"), action(2)).capsule
    assert mother is not None
    world.environments[ENV] = mother
    restored = Given(
        *CREATED,
        action(1),
        begin("snapshot"),
        publish("v1"),
        begin("restore", Moment(env=ENV, generation=1)),
        publish("v0", activation=2),
    ).capsule
    assert restored is not None
    world.environments[ENV] = restored
    assert [str(one.moment) for one in world.lineage(restored.moment)] == ["shop@3", "shop@1"]
