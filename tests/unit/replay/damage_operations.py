"""Damages to who did what, and when: I1, I2, I3, I7; and to what pages asked of hosts outside."""

from __future__ import annotations

from typing import Any

from tests.unit.replay.damage import breaks
from tests.unit.replay.told import Event, Told


def both(told: Told, env: str, number: int, nth: int = 0, **changed: Any) -> tuple[Event, Event]:
    """Beginning and end of an action, changed alike."""
    pair = (told.one("action.begun", env, nth, number=number), told.one("action.ended", env, nth, number=number))
    for event in pair:
        event.update(changed)
    return pair


# --- I1: one generation per operation ---------------------------------------------------------------------------------


@breaks("I1", "action 1 of a did not end where it began (position 10)", "generation 1 became 2")
def ends_on_another_generation(told: Told) -> Event:
    ended = told.one("action.ended", "a", number=1)
    ended["generation"] = 2
    return ended


@breaks("I1", "action 2 of a did not end where it began", "lease 4 became 5", "activation 1 became 2")
def ends_under_another_lease(told: Told) -> Event:
    ended = told.one("action.ended", "a", number=2)
    ended.update(lease=5, activation=2)
    return ended


@breaks("I1", "action 1 of c ends, but no such action is under way on generation 1")
def ends_twice(told: Told) -> Event:
    return told.again(told.one("action.ended", "c", number=1))


@breaks("I1", "an evaluation of a is of generation 1, while 2 is published")
def judges_another_generation(told: Told) -> Event:
    judged = told.one("evaluation.recorded", "a")
    judged["generation"] = 1
    return judged


@breaks("I1", "the request http://notes.example/ of a is of generation 1, while 2 is published")
def input_of_an_old_generation(told: Told) -> Event:
    given = told.one("input.recorded", "a")
    return told.again(given, after=told.one("evaluation.recorded", "a"), lease=7, after_action=3)


@breaks("I1", "lease 4 of a is used on generation 2", "granted before that generation was published")
def lease_moved_to_the_new_generation(told: Told) -> Event:
    begun, _ = both(told, "a", 3, lease=4)
    return begun


@breaks("I1", "action 3 of a begins, though it is under way since position 18", also="I10")
def begins_twice(told: Told) -> Event:
    return told.again(told.one("action.begun", "a", number=3))


# --- I2: root leases only on the published generation, never between freeze and publish -------------------------------


@breaks("I2", "action 2 began in a while snapshot had it frozen (since position 13)")
def begins_while_frozen(told: Told) -> Event:
    begun = told.one("action.begun", "a", number=2)
    told.move(told.one("transition.begun", "a", op="snapshot"), before=begun)
    return begun


@breaks("I2", "action 3 of a began on generation 1; published is 2")
def begins_on_an_old_generation(told: Told) -> Event:
    begun, _ = both(told, "a", 3, generation=1)
    return begun


@breaks("I2", "action 1 of c began on generation 2; published is 1")
def begins_on_a_generation_to_come(told: Told) -> Event:
    begun, _ = both(told, "c", 1, generation=2)
    return begun


@breaks("I2", "POST http://notes.example/ of a was live after snapshot had drained it (position 15)")
def input_between_drain_and_publish(told: Told) -> Event:
    given = told.one("input.recorded", "a")
    return told.move(given, after=told.one("transition.drained", "a"))


@breaks("I2", "an evaluation of a was live after restore had drained it")
def judges_between_drain_and_publish(told: Told) -> Event:
    judged = told.one("evaluation.recorded", "a")
    return told.move(judged, after=told.one("transition.drained", "a", nth=1))


@breaks("I2", "action 4 began in b, which is retired", also="I7")
def acts_after_the_end(told: Told) -> Event:
    retired = told.one("environment.retired", "b")
    ended = told.again(told.one("action.ended", "b"), after=retired, stream="act/b", number=4, lease=22)
    begun = told.again(told.one("action.begun", "b"), after=retired, stream="act/b", number=4, lease=22)
    assert told.position(begun) < told.position(ended)
    return begun


# --- I3: no publish while a lease on the old generation is live -------------------------------------------------------


@breaks("I3", "snapshot of a calls itself drained, but action 2 (lease 4 on generation 1, since position 13) is live")
def drained_over_a_live_action(told: Told) -> Event:
    told.drop(told.one("action.ended", "a", number=2))
    return told.one("transition.drained", "a")


@breaks("I3", "snapshot published generation 2 of a without a drain")
def published_without_a_drain(told: Told) -> Event:
    told.drop(told.one("transition.drained", "a"))
    return told.one("generation.published", "a", generation=2)


@breaks("I3", "snapshot of a went on over stragglers that still hold its branch: thread mailer")
def continues_over_a_straggler(told: Told) -> Event:
    drained = told.one("transition.drained", "a")
    drained["held"] = [{"holder": "thread mailer", "how": "fenced", "waited_ms": 1.0}]
    return drained


@breaks("I3", "snapshot published generation 2 of a and names lost actions: only recovery may")
def loses_actions_without_a_crash(told: Told) -> Event:
    published = told.one("generation.published", "a", generation=2)
    published["lost_actions"] = [2]
    return published


@breaks("I3", "recovery of a does not name action 3, which was under way at the crash")
def recovery_hides_a_lost_action(told: Told) -> Event:
    published = told.one("generation.published", "a", op="recover")
    published["lost_actions"] = [2]
    return published


@breaks("I3", "restore published generation 3 of a without a drain")
def switches_without_a_drain(told: Told) -> Event:
    told.drop(told.one("transition.drained", "a", nth=1))
    return told.one("generation.published", "a", generation=3)


# --- I7: only tickets of the present environment, epoch and activation ------------------------------------------------


@breaks("I7", "an input of a with epoch 1 was accepted, while its epoch is 3")
def stale_request_accepted(told: Told) -> Event:
    given = told.one("input.recorded", "a")
    return told.again(given, after=told.one("request.refused", "a"), generation=3, lease=9, after_action=0)


@breaks("I7", "action 1 of a was accepted on activation 1, while its activation is 2")
def old_activation_accepted(told: Told) -> Event:
    begun, _ = both(told, "a", 1, nth=1, activation=1)
    return begun


@breaks("I7", "an action of c is recorded in the stream act/a: it was taken for another environment's")
def action_in_another_stream(told: Told) -> Event:
    begun = told.one("action.begun", "c", number=1)
    told.events = [("act/a" if event is begun else stream, event) for stream, event in told.events]
    return begun


@breaks("I7", "activation 2 of a was given before: old tickets for it would open again")
def activation_given_again(told: Told) -> Event:
    activated = told.one("environment.activated", "a", activation=3)
    for event in (*told.all("action.begun", "a", generation=4), *told.all("action.ended", "a", generation=4)):
        event["activation"] = 2
    activated["activation"] = 2
    return activated


@breaks("I7", "a stale request was refused without naming its epoch 1")
def refusal_names_nothing(told: Told) -> Event:
    refused = told.one("request.refused", "a")
    refused["detail"] = "no"
    return refused


@breaks("I7", "a request counted as refused got status 200")
def refusal_that_is_none(told: Told) -> Event:
    refused = told.one("request.refused", "a")
    refused["status"] = 200
    return refused


@breaks("I7", "action 3 of a was accepted on activation 4; it is parked")
def acts_while_parked(told: Told) -> Event:
    """The engine was opened again, and nobody has bound it since."""
    last, place = told.one("action.ended", "c", nth=-1), {"number": 3, "generation": 6, "lease": 90}
    ended = told.again(told.one("action.ended", "a", nth=-1), after=last, stream="act/a", **place)
    begun = told.again(told.one("action.begun", "a", nth=-1), after=last, stream="act/a", **place)
    assert told.position(begun) < told.position(ended)
    return begun


# --- what pages asked of hosts outside -------------------------------------------------------------------------------


def asked(told: Told, **changed: Any) -> Event:
    """An exchange that is as it should be, after the first input of a, and what is wrong with it."""
    given = told.one("input.recorded", "a")
    fields = {"type": "exchange.recorded/1", "activation": 2, "asked": 1, "cause": "", "url": "https://cdn.example/"}
    return told.again(given, after=given, **{**fields, **changed})


@breaks("I1", "the request https://cdn.example/ of a is of generation 2, while 1 is published")
def asks_for_a_generation_to_come(told: Told) -> Event:
    return asked(told, generation=2)


@breaks("I1", "a page of a@4 asked https://cdn.example/, while 1 is published")
def asks_for_a_page_of_a_generation_that_is_far(told: Told) -> Event:
    return asked(told, generation=4, cause="binding")


@breaks("I7", "an exchange of a with epoch 9 was accepted, while its epoch is 1")
def asks_for_another_epoch(told: Told) -> Event:
    return asked(told, epoch=9)


@breaks("I12", "POST https://cdn.example/, asked of a host outside, tells its cookie")
def asks_with_a_cookie_that_is_kept(told: Told) -> Event:
    return asked(told, headers={"cookie": "session=1"})
