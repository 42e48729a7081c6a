"""Damages to what was published: I4, I5, I6."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.replay.damage import breaks
from tests.unit.replay.told import Event, Told


def sealed(published: Event, resource: str = "db") -> dict[str, Any]:
    """The handle of a component."""
    found: dict[str, Any] = published["manifest"][resource]["sealed"]
    return found


def snapshot_of_d(told: Told) -> Event:
    """A publish from which little follows, and what does (a recovery that copies it) has the same components."""
    recovered = told.one("generation.published", "d", op="recover")
    published = told.one("generation.published", "d", op="snapshot")
    recovered["manifest"] = published["manifest"]
    return published


# --- I4: a manifest names every required resource once, each at a version sealed in one cut ---------------------------


@breaks("I4", "the manifest of d lacks page")
def lacks_a_resource(told: Told) -> Event:
    published = snapshot_of_d(told)
    del published["manifest"]["page"]
    return published


@breaks("I4", "the manifest of d names cache, which its contract does not know")
def has_a_stranger(told: Told) -> Event:
    published = snapshot_of_d(told)
    stranger = copy.deepcopy(published["manifest"]["db"])
    stranger["sealed"].update(resource="cache", version="cache-1")
    published["manifest"]["cache"] = stranger
    return published


@breaks("I4", "the manifest of d has db without a sealed version")
def has_an_unsealed_component(told: Told) -> Event:
    published = snapshot_of_d(told)
    sealed(published)["version"] = ""
    return published


@breaks("I4", "the manifest of d has db from another journal: j2")
def is_of_another_journal(told: Told) -> Event:
    published = snapshot_of_d(told)
    sealed(published)["journal"] = "j2"
    return published


@breaks("I4", "the manifest of d has a version of page in the place of db")
def has_exchanged_components(told: Told) -> Event:
    published = snapshot_of_d(told)
    sealed(published)["resource"] = "page"
    return published


@breaks("I4", "page of d depends on [], the contract says ['app']")
def has_other_dependencies(told: Told) -> Event:
    published = snapshot_of_d(told)
    published["manifest"]["page"]["depends_on"] = []
    return published


@breaks("I4", "db of d was sealed by sqlite, the contract says memory")
def was_sealed_by_another_adapter(told: Told) -> Event:
    published = snapshot_of_d(told)
    sealed(published)["adapter"] = "sqlite"
    return published


@breaks("I4", "restore published a@3 with other components than a@1 has")
def restores_something_else(told: Told) -> Event:
    published = told.one("generation.published", "a", op="restore")
    sealed(published)["version"] = "db-new"
    return published


@breaks("I4", "fork published b@1 with other components than a@2 has")
def mixes_two_cuts(told: Told) -> Event:
    published = told.one("generation.published", "b")
    published["manifest"]["db"] = copy.deepcopy(told.one("generation.published", "a")["manifest"]["db"])
    return published


@breaks("I4", "clone published c@1 from a@9, which was never published")
def clones_what_never_was(told: Told) -> Event:
    published = told.one("generation.published", "c")
    for event in (published, told.one("transition.begun", "c")):
        event["source"] = {"env": "a", "generation": 9}
    sealed(published)["version"] = "db-new"
    recovered = told.one("generation.published", "c", op="recover")
    recovered["manifest"] = published["manifest"]
    return published


@breaks("I4", "the manifest of d is of a contract that is not registered: c9")
def is_of_an_unknown_contract(told: Told) -> Event:
    published = told.one("generation.published", "d", op="recover")
    published["contract"] = "c9"
    return published


# --- I5: publish is one atomic append ---------------------------------------------------------------------------------


@breaks("I5", "snapshot of a begins on generation 0, while 1 is published")
def begins_on_another_base(told: Told) -> Event:
    begun = told.one("transition.begun", "a", op="snapshot")
    begun["base"] = 0
    return begun


@breaks("I5", "the engine stopped in good order with snapshot of a unsettled", also="I10")
def stops_unsettled(told: Told) -> Event:
    parked = told.one("environment.parked", "a", nth=-1)
    drained, published = (told.one(kind, "a", nth=-1) for kind in ("transition.drained", "generation.published"))
    told.drop(parked, drained, published)
    return told.one("engine.stopped")


@breaks("I5", "b was published at position 23 as a child of a, whose stream does not say so")
def parent_is_not_told(told: Told) -> None:
    told.drop(told.one("environment.forked", "a", child="b"))


@breaks("I5", "f is told to its parent (position 26), but its first generation was not published")
def child_is_not_published(told: Told) -> None:
    told.again(told.one("environment.forked", "a", child="b"), child="f")


@breaks("I5", "b was published (position 23) apart from the event that tells its parent a")
def parent_is_told_later(told: Told) -> Event:
    forked = told.one("environment.forked", "a", child="b")
    return told.move(forked, after=told.one("action.ended", "c"))


@breaks("I5", "d goes from generation 1 to 3: a publish is missing or doubled")
def skips_a_generation(told: Told) -> Event:
    published = told.one("generation.published", "d", op="snapshot")
    for event in told.all("action.begun", "d", generation=2):
        event["generation"] = 3
    for event in told.all("action.ended", "d", generation=2):
        event["generation"] = 3
    published["generation"] = 3
    told.one("transition.begun", "d", op="reset")["base"] = 3
    told.one("transition.begun", "d", op="recover").update(base=3, source={"env": "d", "generation": 3})
    recovered = told.one("generation.published", "d", op="recover")
    recovered.update(generation=4, epoch=4, source={"env": "d", "generation": 3})
    return published


@breaks("I5", "recover published d@3 with epoch 1 instead of 3")
def switches_in_the_old_epoch(told: Told) -> Event:
    published = told.one("generation.published", "d", op="recover")
    published["epoch"] = 1
    return published


@breaks("I5", "restore of a begins, though snapshot (position 15) is unsettled", also="I1 I2 I4 I6")
def publish_is_lost(told: Told) -> Event:
    told.drop(told.one("generation.published", "a", generation=2))
    return told.one("transition.begun", "a", op="restore")


@breaks("I5", "snapshot of d began, reset was published", also="I4")
def publishes_another_operation(told: Told) -> Event:
    published = told.one("generation.published", "d", op="snapshot")
    published.update(op="reset", epoch=2, source={"env": "d", "generation": 1}, actions=2)
    for event in (*told.all("action.begun", "d", generation=2), *told.all("action.ended", "d", generation=2)):
        event["epoch"] = 2
    told.again(told.one("environment.activated", "d"), after=published, generation=2, activation=2)
    for event in (*told.all("action.begun", "d", generation=2), *told.all("action.ended", "d", generation=2)):
        event["activation"] = 2
    told.one("transition.aborted", "d")["activation"] = 3
    return published


# --- I6: two live environments never share a writable branch; a sealed version is never written -----------------------


@breaks("I6", "d publishes version", "of db, which a sealed (position 17)", "they shared a writable branch")
def two_share_a_branch(told: Told) -> Event:
    published = snapshot_of_d(told)
    published["manifest"]["db"] = copy.deepcopy(told.one("generation.published", "a", generation=2)["manifest"]["db"])
    return published


@breaks("I6", "a publishes version", "of db, which d sealed", "they shared a writable branch")
def the_other_way_round(told: Told) -> Event:
    published = told.one("generation.published", "a", generation=4)
    published["manifest"]["db"] = copy.deepcopy(snapshot_of_d(told)["manifest"]["db"])
    told.one("generation.published", "a", op="recover")["manifest"] = published["manifest"]
    return published


@breaks("I6", "a publishes version", "of page, which b sealed", "without descending from it")
def a_parent_gets_its_childs_version(told: Told) -> Event:
    """What a child seals never flows back."""
    child = told.one("generation.published", "b")
    component = copy.deepcopy(child["manifest"]["page"])
    component["sealed"]["version"] = "page-of-b"
    begun = told.again(told.one("transition.begun", "a", op="snapshot"), after=told.one("action.ended", "b"))
    begun.update(env="b", transition="b/9", base=1)
    drained = told.again(told.one("transition.drained", "a"), after=begun, env="b", transition="b/9")
    published = told.again(child, after=drained, transition="b/9", op="snapshot", generation=2, source=None, actions=3)
    published["manifest"]["page"] = component
    told.events = [("env/b" if event is begun or event is drained else stream, event) for stream, event in told.events]
    told.one("environment.retired", "b")["generation"] = 2
    later = told.one("generation.published", "a", generation=4)
    later["manifest"]["page"] = copy.deepcopy(component)
    told.one("generation.published", "a", op="recover")["manifest"] = later["manifest"]
    return later


@breaks("I6", "is not what it was at position", "a sealed version was written")
def a_sealed_version_was_written(told: Told) -> Event:
    published = told.one("generation.published", "a", generation=6)
    published["manifest"]["db"] = copy.deepcopy(told.one("generation.published", "a", op="recover")["manifest"]["db"])
    sealed(published)["data"] = {"path": "resources/db/elsewhere"}
    return published


@breaks("I6", "of db both lie at resources/db/here: a sealed version was overwritten")
def two_versions_lie_in_one_place(told: Told) -> Event:
    first = told.one("generation.published", "a", generation=2)
    for event in (first, told.one("generation.published", "b"), told.one("generation.published", "c")):
        sealed(event)["data"] = {"path": "resources/db/here"}
    sealed(told.one("generation.published", "c", op="recover"))["data"] = {"path": "resources/db/here"}
    published = snapshot_of_d(told)
    sealed(published)["data"] = {"path": "resources/db/here"}
    return published


@breaks("I6", "version db-base-", "is not what it was at position 5: a sealed version was written")
def the_base_was_written(told: Told) -> Event:
    later = told.one("generation.published", "a", generation=4)
    later["manifest"]["db"] = copy.deepcopy(told.one("base.provisioned")["manifest"]["db"])
    sealed(later)["data"] = {"path": "resources/db/elsewhere"}
    told.one("generation.published", "a", op="recover")["manifest"] = later["manifest"]
    return later
