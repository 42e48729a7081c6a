"""Damages to how environments live and end, and to who may know: I8 to I12."""

from __future__ import annotations

import base64

from tests.unit.replay.damage import breaks
from tests.unit.replay.told import Event, Told

IDENTITY = base64.urlsafe_b64encode(b'["a",3,2]').rstrip(b"=").decode()
TICKET = f"1.{IDENTITY}.{'A' * 43}"

# --- I8: ready only when every resource is bound and probed -----------------------------------------------------------


@breaks("I8", "activation 2 of a@3 was called ready before page (memory) was bound and probed")
def one_resource_was_not_probed(told: Told) -> Event:
    activated = told.one("environment.activated", "a", activation=2)
    del activated["probed_ms"]["page"]
    return activated


@breaks("I8", "activation 1 of b@1 was called ready before db (memory) was bound and probed")
def nothing_was_probed(told: Told) -> Event:
    activated = told.one("environment.activated", "b")
    activated["probed_ms"] = {}
    return activated


@breaks("I8", "activation 1 of c@1 names a probe of cache, which its contract does not know")
def a_stranger_was_probed(told: Told) -> Event:
    activated = told.one("environment.activated", "c")
    activated["probed_ms"]["cache"] = 1.5
    return activated


@breaks("I8", "activation 1 of d@1 names a probe of app that took -1.0 ms: it was not carried out")
def a_probe_that_took_less_than_no_time(told: Told) -> Event:
    activated = told.one("environment.activated", "d")
    activated["probed_ms"]["app"] = -1.0
    return activated


@breaks("I8", "activation 3 of a@4 names a probe of db that took 'long' ms")
def a_probe_that_took_no_time_at_all(told: Told) -> Event:
    activated = told.one("environment.activated", "a", activation=3)
    activated["probed_ms"]["db"] = "long"
    return activated


@breaks("I8", "activation 3 of a@4 does not say what was probed, as others of this run do")
def says_nothing_of_probes(told: Told) -> Event:
    activated = told.one("environment.activated", "a", activation=3)
    del activated["probed_ms"]
    return activated


@breaks("I8", "POST http://notes.example/ (lease 20) was served by a, of which nothing is bound")
def serves_while_parked(told: Told) -> Event:
    parked = told.one("environment.parked", "a", generation=4)
    return told.again(
        told.one("input.recorded", "a"), after=parked, stream="act/a", generation=4, epoch=3, lease=20, after_action=1
    )


@breaks("I8", "an evaluation (lease 90) was served by c, of which nothing is bound")
def judges_before_it_is_bound(told: Told) -> Event:
    opened = told.one("recovery.finished", run="run-3")
    judged = told.one("evaluation.recorded", "a")
    return told.again(judged, after=opened, stream="act/c", env="c", generation=2, epoch=2, lease=90, after_action=0)


# --- I9: nothing of an aborted transition is used, what was revoked is unknown ----------------------------------------


@breaks("I9", "reset d/8 of d is published, though it was aborted at position 55", also="I2 I3 I5 I7 I10")
def is_published_all_the_same(told: Told) -> Event:
    aborted = told.one("transition.aborted", "d")
    published = told.one("generation.published", "d", op="create")
    source = {"env": "d", "generation": 1}
    return told.again(
        published, after=aborted, stream="env/d", op="reset", transition="d/8", generation=3, epoch=3, source=source
    )


@breaks("I9", "reset d/8 of d begins again, though it was aborted at position 55")
def begins_again_under_its_name(told: Told) -> Event:
    begun = told.one("transition.begun", "d", op="recover")
    begun["transition"] = "d/8"
    told.one("generation.published", "d", op="recover")["transition"] = "d/8"
    return begun


@breaks("I9", "action 3 is on activation 2 of d, which was staged for a transition that was aborted", also="I7")
def acts_on_the_staged_successor(told: Told) -> Event:
    begun, ended = (told.one(kind, "d", number=3) for kind in ("action.begun", "action.ended"))
    begun["activation"] = ended["activation"] = 2
    return begun


@breaks("I9", "a binding is on activation 2 of d, which was staged for a transition that was aborted at position 55")
def the_staged_successor_is_bound(told: Told) -> Event:
    aborted = told.one("transition.aborted", "d")
    parked = told.again(told.one("environment.parked", "a"), after=aborted, stream="env/d", env="d", generation=2)
    for kind in ("action.begun", "action.ended"):
        told.one(kind, "d", number=3)["activation"] = 2
    bound = told.again(told.one("environment.activated", "d"), after=parked, stream="env/d", generation=2, activation=2)
    del told.events[told.position(told.one("action.begun", "d", number=3)) - 1 :]
    return bound


@breaks("I9", "action 3 is on generation 3 of d, whose transition was aborted at position 55; 2 serves on", also="I2")
def acts_on_the_aborted_generation(told: Told) -> Event:
    begun, ended = (told.one(kind, "d", number=3) for kind in ("action.begun", "action.ended"))
    begun["generation"] = ended["generation"] = 3
    return begun


@breaks("I9", "action 2 of d (lease 15) was revoked at position 50, and is recorded as ok instead of unknown")
def what_was_revoked_succeeds(told: Told) -> Event:
    ended = told.one("action.ended", "d", number=2)
    ended["outcome"] = "ok"
    return ended


@breaks("I9", "action 2 of d (lease 15) was revoked at position 50, and is recorded as failed instead of unknown")
def what_was_revoked_fails(told: Told) -> Event:
    ended = told.one("action.ended", "d", number=2)
    ended["outcome"] = "failed"
    return ended


@breaks("I9", "d/8 of d began as reset (position 54) and was aborted as restore")
def is_aborted_as_something_else(told: Told) -> Event:
    aborted = told.one("transition.aborted", "d")
    aborted["op"] = "restore"
    return aborted


@breaks("I9", "the abort of reset d/8 gives up activation 1 of d, which serves")
def gives_up_what_serves(told: Told) -> Event:
    aborted = told.one("transition.aborted", "d")
    aborted["activation"] = 1
    return aborted


@breaks("I9", "a is told of e, whose founding was aborted at 60", also="I5")
def a_child_that_was_not_founded(told: Told) -> Event:
    aborted = told.one("transition.aborted", "e")
    return told.again(told.one("environment.forked", "a"), after=aborted, stream="env/a", child="e")


@breaks("I9", "an evaluation (lease 18) is of e, whose founding was aborted at position 60", also="I1 I2 I7")
def judges_what_was_not_founded(told: Told) -> Event:
    aborted = told.one("transition.aborted", "e")
    return told.again(told.one("evaluation.recorded", "a"), after=aborted, stream="act/e", env="e", lease=18)


# --- I10: the lifecycle, the lineage, the journal's own beginning (the chain itself: test_audit_chain.py) -------------


@breaks("I10", "action 4 of a follows action 2 of its lineage")
def skips_an_action(told: Told) -> Event:
    told.one("generation.published", "a", op="recover")["lost_actions"] = [2, 4]
    begun = told.one("action.begun", "a", generation=4, number=3)
    begun["number"] = 4
    return begun


@breaks("I10", "a@2 says its lineage has 7 actions, the events before it give 2")
def counts_its_lineage_wrongly(told: Told) -> Event:
    published = told.one("generation.published", "a", generation=2)
    published["actions"] = 7
    for kind in ("action.begun", "action.ended"):
        told.one(kind, "a", number=3)["number"] = 8
    return published


@breaks("I10", "the journal is created a second time")
def is_created_again(told: Told) -> Event:
    return told.again(told.one("journal.created"))


@breaks("I10", "the first event is engine.started/1, not the journal's creation")
def was_never_created(told: Told) -> Event:
    told.drop(told.one("journal.created"))
    return told.one("engine.started")


@breaks("I10", "a is bound (activation 3), though activation 2 serves")
def is_bound_twice(told: Told) -> Event:
    told.drop(told.one("environment.parked", "a", generation=4))
    return told.one("environment.activated", "a", activation=3)


@breaks("I10", "a is parked on generation 6, though nothing of it was bound")
def is_parked_twice(told: Told) -> Event:
    return told.again(told.one("environment.parked", "a", generation=6))


@breaks("I10", "a is parked while snapshot is under way (position 61)")
def is_parked_in_a_transition(told: Told) -> Event:
    parked = told.one("environment.parked", "a", generation=4)
    parked["generation"] = 3
    told.move(parked, after=told.one("transition.begun", "a", op="snapshot", nth=1))
    return parked


@breaks("I10", "b ends again, after position 68")
def ends_again(told: Told) -> Event:
    return told.again(told.one("environment.retired", "b"))


@breaks("I10", "b is bound (activation 2), though it ended at position 68")
def is_bound_after_its_end(told: Told) -> Event:
    activated = told.one("environment.activated", "b")
    return told.again(activated, after=told.one("environment.retired", "b"), stream="env/b", activation=2)


@breaks("I10", "snapshot of a is drained again, after position 16")
def is_drained_twice(told: Told) -> Event:
    return told.again(told.one("transition.drained", "a"))


@breaks("I10", "a policy is chosen for b, which ended at position 68")
def is_kept_after_its_end(told: Told) -> Event:
    return told.again(
        told.one("policy.chosen", "i"), after=told.one("environment.retired", "b"), stream="env/b", env="b"
    )


@breaks("I10", "a policy is chosen for a, while snapshot is under way")
def is_kept_in_a_transition(told: Told) -> Event:
    begun = told.one("transition.begun", "a", op="snapshot")
    return told.again(told.one("policy.chosen", "i"), after=begun, stream="env/a", env="a")


@breaks("I10", "the opening of run-2 left snapshot of a unsettled")
def recovery_leaves_a_transition(told: Told) -> Event:
    begun = told.one("transition.begun", "a", op="snapshot", nth=1)
    acted = told.one("action.begun", "a", generation=4, number=3)
    told.again(begun, after=acted, stream="env/a", transition="a/18", base=4)
    told.drop(*(event for event in told.all("transition.begun", "a", op="recover")))
    told.drop(told.one("generation.published", "a", op="recover"))
    finished = told.one("recovery.finished", run="run-2")
    finished["recovered"] = finished["recovered"][1:]
    del told.events[told.position(finished) :]
    return finished


# --- I11: only orphans are collected, all of them counted, before anything is served ----------------------------------


@breaks("I11", "version db-base-", "which the base needs (position 5), was collected as an orphan")
def the_base_is_collected(told: Told) -> Event:
    version = told.one("base.provisioned")["manifest"]["db"]["sealed"]["version"]
    orphan = told.one("orphan.collected")
    orphan.update(resource="db", kind="sealed", name=version)
    return orphan


@breaks("I11", "of db, which a@2 needs (position 17), was collected as an orphan")
def an_old_generation_is_collected(told: Told) -> Event:
    version = told.one("generation.published", "a", generation=2)["manifest"]["db"]["sealed"]["version"]
    orphan = told.one("orphan.collected", nth=3)
    orphan.update(resource="db", kind="sealed", name=version)
    return orphan


@breaks("I11", "of db, which d@2 needs (position 53), was collected as an orphan")
def is_collected_while_the_engine_runs(told: Told) -> Event:
    version = told.one("generation.published", "d", generation=2)["manifest"]["db"]["sealed"]["version"]
    orphan = told.one("orphan.collected")
    served = told.one("action.ended", "a", nth=-1)
    return told.again(orphan, after=served, stream="engine", resource="db", kind="sealed", name=version)


@breaks("I11", "branch cache-b1 of cache was collected: no contract knows that resource")
def a_strangers_branch_is_collected(told: Told) -> Event:
    orphan = told.one("orphan.collected")
    orphan.update(resource="cache", kind="branch", name="cache-b1")
    return orphan


@breaks("I11", "everything of db was collected as a inventory, which is nothing that can be an orphan")
def what_is_no_orphan_is_collected(told: Told) -> Event:
    orphan = told.one("orphan.collected")
    orphan.update(resource="db", kind="inventory", name="everything")
    return orphan


@breaks("I11", "the opening of run-2 says that it collected 18 orphans; 17 are on record since position 70")
def an_orphan_is_hidden(told: Told) -> Event:
    told.drop(told.one("orphan.collected", nth=5))
    return told.one("recovery.finished", run="run-2")


@breaks("I11", "the opening of run-2 says that it recovered a@6: not published")
def recovers_what_is_not_published(told: Told) -> Event:
    finished = told.one("recovery.finished", run="run-2")
    finished["recovered"][0]["generation"] = 6
    return finished


@breaks("I11", "a is bound (activation 4) before the engine that started at position 70 had collected")
def serves_before_it_has_collected(told: Told) -> Event:
    activated = told.one("environment.activated", "a", activation=4)
    return told.move(activated, before=told.one("orphan.collected"))


# --- I12: what opens an environment opens that one alone, and is not written down -------------------------------------


@breaks("I12", "a ticket of a (epoch 3, activation 2) is written down in the clear, in an event of act/a")
def a_ticket_in_a_header(told: Told) -> Event:
    given = told.one("input.recorded", "a")
    given["headers"] = {"cookie": f"x={TICKET}"}
    return given


@breaks("I12", "a ticket of a (epoch 3, activation 2) is written down in the clear, in an event of act/a")
def a_ticket_in_an_address(told: Told) -> Event:
    refused = told.one("request.refused", "a")
    refused["url"] = f"http://notes.example/?ticket={TICKET}"
    return refused


@breaks("I12", "POST http://notes.example/ let in the header Statefork_Ticket, which is the gateway's own")
def a_header_of_ours_is_let_in(told: Told) -> Event:
    given = told.one("input.recorded", "a")
    given["headers"] = {"Statefork_Ticket": "forged"}
    return given


@breaks("I12", "the sealed version of app in the manifest of d tells its ticket_key")
def a_manifest_tells_a_key(told: Told) -> Event:
    published = told.one("generation.published", "d", op="create")
    for event in (told.one("base.provisioned"), *told.all("generation.published")):
        event["manifest"]["app"]["sealed"]["data"] = {"ticket_key": "00" * 32}
    return published


@breaks("I12", "lease 10 lets somebody into c, though it was granted on a (position 33)")
def a_lease_opens_two_environments(told: Told) -> Event:
    begun, ended = (told.one(kind, "c", number=1) for kind in ("action.begun", "action.ended"))
    begun["lease"] = ended["lease"] = 10
    return begun


@breaks("I12", "a refusal (stale_generation) that concerns a is recorded with another environment: act/c")
def a_refusal_is_told_to_another(told: Told) -> Event:
    refused = told.one("request.refused", "a")
    told.events = [("act/c" if event is refused else stream, event) for stream, event in told.events]
    return refused


@breaks("I12", "a refusal (stale_generation) that concerns a@3 is not recorded with it")
def a_refusal_is_not_told(told: Told) -> Event:
    refused = told.one("request.refused", "a")
    told.events = [("engine" if event is refused else stream, event) for stream, event in told.events]
    return refused


@breaks("I12", "somebody was told that there is no a, which stands on generation 3")
def an_environment_is_denied(told: Told) -> Event:
    refused = told.one("request.refused", "a")
    refused.update(code="unknown_environment", status=421)
    return refused
