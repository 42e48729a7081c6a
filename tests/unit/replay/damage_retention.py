"""Damages to what was let go, and to what was removed for it: I11."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.replay.damage import breaks
from tests.unit.replay.told import Event, Told


def pruning(told: Told) -> Event:
    """Where generations 2 and 4 of g go."""
    return told.one("generations.pruned", "g")


def going(told: Told, generation: int, nearest: int = 0, actions: int = 1, env: str = "g") -> Event:
    """One more generation goes there."""
    pruned = pruning(told)
    near = {"env": env, "generation": nearest or generation - 1}
    pruned["pruned"].append({"generation": generation, "nearest": near, "actions": actions})
    return pruned


def sealed(told: Told, generation: int, resource: str = "db") -> dict[str, Any]:
    """The handle of a component of g."""
    found: dict[str, Any] = told.one("generation.published", "g", generation=generation)["manifest"][resource]["sealed"]
    return found


def collected(told: Told) -> Event:
    """The removal of what only generation 4 of g held in its database."""
    return told.one("orphan.collected", resource="db", name=sealed(told, 4)["version"])


# --- what may go ------------------------------------------------------------------------------------------------------


@breaks("I11", "g@6 was pruned, which is its present")
def the_present_goes(told: Told) -> Event:
    return going(told, 6)


@breaks("I11", "g@1 was pruned, which is where the environment began")
def the_first_goes(told: Told) -> Event:
    return going(told, 1, nearest=3)


@breaks("I11", "g@3 was pruned, and it bore the mark 'in the middle'")
def a_marked_one_goes(told: Told) -> Event:
    told.drop(told.one("generation.published", "g", op="restore"), told.one("transition.begun", "g", op="restore"))
    told.drop(told.one("transition.drained", "g", nth=-1), told.one("environment.activated", "g", nth=-1))
    pruned = going(told, 3, nearest=1, actions=2)
    pruned["pruned"][1].update(nearest={"env": "g", "generation": 1}, actions=3)
    return pruned


@breaks("I11", "g@5 was pruned, and what led to it can't be done again")
def one_behind_an_opaque_action_goes(told: Told) -> Event:
    return going(told, 5, nearest=3, actions=3)


@breaks("I11", "g@4 was pruned, and what led to it can't be done again")
def one_behind_an_unknown_action_goes(told: Told) -> Event:
    ended = told.one("action.ended", "g", number=3)
    ended.update(outcome="unknown", observation=None)
    return pruning(told)


@breaks("I11", "g@4 was pruned twice, the first time at position")
def one_goes_twice(told: Told) -> Event:
    again = told.again(pruning(told))
    del again["pruned"][0]
    return again


@breaks("I11", "g@9 was pruned, and was never published")
def one_goes_that_never_was(told: Told) -> Event:
    return going(told, 9)


@breaks("I11", "g@4 was pruned, which stays under the retention 'last 3'")
def more_goes_than_was_asked_for(told: Told) -> Event:
    pruned = pruning(told)
    pruned["retention"] = "last 3"
    return pruned


@breaks("I11", "g@4 was pruned, which stays under the retention 'all'")
def one_goes_though_all_stay(told: Told) -> Event:
    pruned = pruning(told)
    pruned["retention"] = "all"
    return pruned


@breaks("I11", "generations of i went by the retention 'last 1', and 'last 2' was chosen at position")
def a_publish_lets_go_more_than_was_chosen(told: Told) -> Event:
    chosen = told.one("policy.chosen", "i")
    chosen["retention"] = "last 2"
    return told.one("generations.pruned", "i")


@breaks("I11", "the retention 'some' was chosen for i, which is none")
def no_retention_is_chosen(told: Told) -> Event:
    chosen = told.one("policy.chosen", "i")
    chosen["retention"] = "some"
    told.drop(told.one("generations.pruned", "i"))
    return chosen


# --- from where it can be made again ----------------------------------------------------------------------------------


@breaks("I11", "g@4 is to be made again from g@2, which is not there")
def the_nearest_went_itself(told: Told) -> Event:
    pruned = pruning(told)
    pruned["pruned"][1].update(nearest={"env": "g", "generation": 2}, actions=2)
    return pruned


@breaks("I11", "g@4 is to be made again from g@8, which is not there")
def the_nearest_never_was(told: Told) -> Event:
    pruned = pruning(told)
    pruned["pruned"][1]["nearest"]["generation"] = 8
    return pruned


@breaks("I11", "g@4 is to be made again from g@1, which is not the nearest on the way to it")
def there_is_a_nearer_one(told: Told) -> Event:
    pruned = pruning(told)
    pruned["pruned"][1].update(nearest={"env": "g", "generation": 1}, actions=3)
    return pruned


@breaks("I11", "g@4 is to be made again from d@2, which is not the nearest on the way to it")
def the_nearest_is_somebody_elses(told: Told) -> Event:
    pruned = pruning(told)
    pruned["pruned"][1].update(nearest={"env": "d", "generation": 2}, actions=1)
    return pruned


@breaks("I11", "g@4 is after 3 actions, not 2 after g@3")
def the_way_has_another_length(told: Told) -> Event:
    pruned = pruning(told)
    pruned["pruned"][1]["actions"] = 2
    return pruned


# --- marks ------------------------------------------------------------------------------------------------------------


@breaks("I11", "g@12 got the mark 'in the middle', and is not there")
def what_never_was_is_marked(told: Told) -> Event:
    mark = told.one("generation.marked", "g")
    return told.again(mark, generation=12)


@breaks("I11", "g@4 got the mark 'late', and is not there")
def what_went_is_marked(told: Told) -> Event:
    return told.again(told.one("generation.marked", "g"), after=pruning(told), generation=4, mark="late")


# --- what is removed, and made of it ----------------------------------------------------------------------------------


@breaks("I11", "version", "of db, which g@3 needs", "was collected as an orphan")
def a_version_is_removed_that_stays(told: Told) -> Event:
    removed = collected(told)
    removed["name"] = sealed(told, 3)["version"]
    return removed


@breaks("I11", "version", "of db, which h@1 needs", "was collected as an orphan")
def a_version_is_removed_that_a_child_needs(told: Told) -> Event:
    removed = collected(told)
    removed["name"] = sealed(told, 2)["version"]
    return removed


@breaks("I11", "version", "of db, which g@4 needs", "was collected as an orphan")
def a_version_is_removed_before_its_generation_goes(told: Told) -> Event:
    return told.move(collected(told), before=pruning(told))


def of_the_fourth(told: Told, published: Event, begun: Event) -> Event:
    """Made of generation 4 of g, whose content was removed by then."""
    fourth = told.one("generation.published", "g", generation=4)
    for event in (published, begun):
        event["source"] = {"env": "g", "generation": 4}
    published.update(manifest=copy.deepcopy(fourth["manifest"]), actions=fourth["actions"])
    return published


@breaks("I11", "restore published g@7 from g@4, which went at position", "was removed at position")
def what_went_is_restored(told: Told) -> Event:
    published = told.one("generation.published", "g", op="restore")
    return of_the_fourth(told, published, told.one("transition.begun", "g", op="restore"))


@breaks("I11", "fork published h@1 from g@4, which went at position", "was removed at position")
def a_child_is_made_of_what_went(told: Told) -> Event:
    created, begun = told.one("environment.created", "h"), told.one("transition.begun", "h")
    published, forked = told.one("generation.published", "h"), told.one("environment.forked", "g", child="h")
    activated = told.one("environment.activated", "h")
    after = list(told.all("orphan.collected"))[-1]
    for event in (created, begun, published, forked, activated):
        told.move(event, after=after)
        after = event
    created.update(parent={"env": "g", "generation": 4}, inherited_actions=3)
    forked["generation"] = 4
    return of_the_fourth(told, published, begun)
