"""Each checker catches a journal that breaks its rule, says where, and finds nothing wrong with a sound one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from statefork.replay.audit.report import EXIT_CLEAN, EXIT_UNREADABLE, EXIT_VIOLATIONS, FINDINGS_MAX, Report
from statefork.replay.audit.rows import Row
from statefork.replay.audit.run import Audit


def test_a_sound_history_is_clean(story: Any) -> None:
    report = story.audit()
    assert report.clean, list(report.lines())
    assert report.exit_code == EXIT_CLEAN
    assert {checked.invariant for checked in report.checked} >= {f"I{n}" for n in range(1, 13)}
    assert all(checked.looked_at for checked in report.checked)
    assert report.environments == 4
    assert report.journal == "j1"


def test_an_empty_journal_is_clean_and_its_checks_claim_nothing() -> None:
    report = Audit().run([])
    assert report.clean
    headline, *checks = report.lines()
    assert headline == "clean: 0 events of 0 environments keep every rule that was checked"
    assert checks
    assert all(line.endswith("there was nothing to look at") for line in checks)


def ends_elsewhere(story: Any) -> None:
    story.find("action.ended/1", 0)["generation"] = 2


def lease_on_two_generations(story: Any) -> None:
    before = story.find("action.begun/1", 0, env="a")["lease"]
    for kind in ("action.begun/1", "action.ended/1"):
        story.find(kind, 2, env="a")["lease"] = before


def evaluation_of_another_generation(story: Any) -> None:
    story.find("evaluation.recorded/1")["generation"] = 1


def ends_twice(story: Any) -> None:
    ended = story.find("action.ended/1", env="d")
    story.tell("act/d", **{("kind" if k == "type" else k): v for k, v in ended.items() if k != "at"})


def begins_while_frozen(story: Any) -> None:
    story.move(story.find("transition.begun/1", env="a", nth=1), before=story.find("action.begun/1", 1, env="a"))


def begins_on_an_old_generation(story: Any) -> None:
    for kind in ("action.begun/1", "action.ended/1"):
        story.find(kind, 2, env="a")["generation"] = 1


def acts_after_the_end(story: Any) -> None:
    retired = story.control("d", "environment.retired/1", generation=1)
    story.move(retired, before=story.find("action.begun/1", env="d"))


def input_after_the_drain(story: Any) -> None:
    story.move(story.find("input.recorded/1"), before=story.find("generation.published/1", 1, env="a"))


def published_over_a_live_action(story: Any) -> None:
    story.drop(story.find("action.ended/1", 1, env="a"))


def published_without_a_drain(story: Any) -> None:
    story.drop(story.find("transition.drained/1", 0))


def snapshot_over_a_straggler(story: Any) -> None:
    story.find("transition.drained/1", 0)["held"] = [{"holder": "thread mailer", "how": "fenced", "waited_ms": 1.0}]


def loses_actions_without_a_crash(story: Any) -> None:
    story.find("generation.published/1", 1, env="a")["lost_actions"] = [2]


def manifest_lacks_a_resource(story: Any) -> None:
    del story.find("generation.published/1", env="d")["manifest"]["browser"]


def manifest_has_a_stranger(story: Any) -> None:
    manifest = story.find("generation.published/1", env="d")["manifest"]
    manifest["cache"] = copy.deepcopy(manifest["db"])
    manifest["cache"]["sealed"] |= {"resource": "cache", "data": {}}


def manifest_has_an_unsealed_component(story: Any) -> None:
    story.find("generation.published/1", env="d")["manifest"]["db"]["sealed"]["version"] = ""


def manifest_of_another_journal(story: Any) -> None:
    story.find("generation.published/1", env="d")["manifest"]["db"]["sealed"]["journal"] = "j2"


def manifest_with_exchanged_components(story: Any) -> None:
    manifest = story.find("generation.published/1", env="d")["manifest"]
    manifest["db"]["sealed"]["resource"] = "browser"


def manifest_with_other_dependencies(story: Any) -> None:
    story.find("generation.published/1", env="d")["manifest"]["browser"]["depends_on"] = []


def created_from_something_else(story: Any) -> None:
    story.find("generation.published/1", 0, env="d")["manifest"] = story.manifest()


def restored_something_else(story: Any) -> None:
    restored = story.find("generation.published/1", 2, env="a")
    restored["manifest"] = story.manifest()


def unregistered_contract(story: Any) -> None:
    story.find("generation.published/1", env="d")["contract"] = "c9"


def publish_is_missing(story: Any) -> None:
    for kind in ("transition.begun/1", "transition.drained/1", "generation.published/1"):
        (event,) = [e for _, e in story.events if e["type"] == kind and e.get("transition") == "t2"]
        story.drop(event)
    restore = story.find("transition.begun/1", 1, env="a")
    assert restore["op"] == "restore"


def publishes_twice(story: Any) -> None:
    story.tell("env/d", "generation.published/1", **_fields(story.find("generation.published/1", env="d")))


def snapshot_with_a_new_epoch(story: Any) -> None:
    story.find("generation.published/1", 1, env="a")["epoch"] = 2


def begins_on_another_base(story: Any) -> None:
    story.find("transition.begun/1", 1, env="a")["base"] = 0


def stops_unsettled(story: Any) -> None:
    story.begin("d", "snapshot")
    story.tell("engine", "engine.stopped/1", run="r1")


def parent_is_not_told(story: Any) -> None:
    story.drop(story.find("environment.forked/1", 0))


def shared_writable_branch(story: Any) -> None:
    mine = story.find("generation.published/1", 1, env="a")["manifest"]["db"]
    story.find("generation.published/1", env="d")["manifest"]["db"] = copy.deepcopy(mine)


def sealed_version_was_written(story: Any) -> None:
    story.snapshot("d")
    manifest = story.find("generation.published/1", env="d")["manifest"]
    manifest["db"] = copy.deepcopy(story.find("generation.published/1", -2, env="d")["manifest"]["db"])
    manifest["db"]["sealed"]["data"] = {"path": "resources/db/elsewhere"}


def two_versions_in_one_place(story: Any) -> None:
    place = story.find("generation.published/1", 1, env="a")["manifest"]["db"]["sealed"]["data"]["path"]
    story.find("generation.published/1", env="d")["manifest"]["db"]["sealed"]["data"]["path"] = place


def stale_request_accepted(story: Any) -> None:
    story.given("a")["epoch"] = 1


def ticket_of_another_environment(story: Any) -> None:
    given = story.given("d")
    story.drop(given)
    story.events.append(("act/a", given))


def old_activation_accepted(story: Any) -> None:
    for kind in ("action.begun/1", "action.ended/1"):
        story.find(kind, env="a")["activation"] = 1


def activation_given_again(story: Any) -> None:
    story.park("d")
    story.activate("d")["activation"] = 1


def refusal_names_nothing(story: Any) -> None:
    story.find("request.refused/1")["detail"] = "no"


def action_number_skipped(story: Any) -> None:
    for kind in ("action.begun/1", "action.ended/1"):
        story.find(kind, env="d")["number"] = 2


def lineage_counted_wrongly(story: Any) -> None:
    story.find("generation.published/1", 1, env="a")["actions"] = 7
    story.find("action.begun/1", 2, env="a")["number"] = 8
    story.find("action.ended/1", 2, env="a")["number"] = 8


def created_twice(story: Any) -> None:
    story.tell("engine", "journal.created/1", journal="j1", statefork="0.1.0")


def _fields(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("type", "at")}


BROKEN: list[tuple[Callable[[Any], None], str]] = [
    (ends_elsewhere, "I1"),
    (lease_on_two_generations, "I1"),
    (evaluation_of_another_generation, "I1"),
    (ends_twice, "I1"),
    (begins_while_frozen, "I2"),
    (begins_on_an_old_generation, "I2"),
    (input_after_the_drain, "I2"),
    (published_over_a_live_action, "I3"),
    (published_without_a_drain, "I3"),
    (snapshot_over_a_straggler, "I3"),
    (loses_actions_without_a_crash, "I3"),
    (manifest_lacks_a_resource, "I4"),
    (manifest_has_a_stranger, "I4"),
    (manifest_has_an_unsealed_component, "I4"),
    (manifest_of_another_journal, "I4"),
    (manifest_with_exchanged_components, "I4"),
    (manifest_with_other_dependencies, "I4"),
    (created_from_something_else, "I4"),
    (restored_something_else, "I4"),
    (unregistered_contract, "I4"),
    (begins_on_another_base, "I5"),
    (stops_unsettled, "I5"),
    (parent_is_not_told, "I5"),
    (shared_writable_branch, "I6"),
    (sealed_version_was_written, "I6"),
    (two_versions_in_one_place, "I6"),
    (stale_request_accepted, "I7"),
    (ticket_of_another_environment, "I7"),
    (old_activation_accepted, "I7"),
    (activation_given_again, "I7"),
    (refusal_names_nothing, "I7"),
    (action_number_skipped, "I10"),
    (lineage_counted_wrongly, "I10"),
    (created_twice, "I10"),
]


@pytest.mark.parametrize(("break_it", "invariant"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_exactly_the_broken_rule_is_found(story: Any, break_it: Callable[[Any], None], invariant: str) -> None:
    break_it(story)
    report: Report = story.audit()
    assert {finding.invariant for finding in report.findings} == {invariant}, list(report.lines())
    assert all(finding.position or finding.stream == "journal" for finding in report.findings)
    assert all(len(finding.sentence) > 20 for finding in report.findings)
    assert report.exit_code == EXIT_VIOLATIONS


SEVERAL = [
    (publish_is_missing, "I5"),
    (publishes_twice, "I5"),
    (acts_after_the_end, "I2"),
    (snapshot_with_a_new_epoch, "I5"),
]


@pytest.mark.parametrize(("break_it", "invariant"), SEVERAL)
def test_what_breaks_several_rules_is_found_under_the_first_of_them(
    story: Any, break_it: Callable[[Any], None], invariant: str
) -> None:
    break_it(story)
    assert invariant in {finding.invariant for finding in story.audit().findings}


def _again(row: Row, **changed: Any) -> Row:
    fields = {"position": row.position, "stream": row.stream, "version": row.version, "digest": row.digest}
    return Row(**{**fields, "raw": row.raw, **changed})


def test_a_flipped_byte_is_found_at_its_position(story: Any) -> None:
    rows = story.rows()
    at = next(index for index, row in enumerate(rows) if row.kind == "action.ended/1")
    rows[at] = _again(rows[at], raw=rows[at].raw.replace(b"notes.example", b"notes.exbmple"))
    report = Audit().run(rows)
    assert [(finding.invariant, finding.position) for finding in report.findings] == [("I10", at + 1)]


def test_a_byte_that_makes_the_event_unreadable_is_a_violation_too(story: Any) -> None:
    rows = story.rows()
    rows[8] = _again(rows[8], raw=b"\x00" + rows[8].raw[1:])
    report = Audit().run(rows)
    assert ("I10", 9) in {(finding.invariant, finding.position) for finding in report.findings}
    assert report.unreadable
    assert report.exit_code == EXIT_VIOLATIONS


def test_a_gap_is_found(story: Any) -> None:
    rows = story.rows()
    at = next(index for index, row in enumerate(rows) if row.kind == "request.refused/1")
    del rows[at]
    report = Audit().run(rows)
    assert ("I10", at + 2) in {(finding.invariant, finding.position) for finding in report.findings}


def test_an_end_that_was_cut_off_is_found(story: Any) -> None:
    rows = story.rows()
    heads = {row.stream: (row.stream, row.version, row.digest) for row in rows}
    assert Audit(kept_heads=list(heads.values())).run(rows).clean
    report = Audit(kept_heads=list(heads.values())).run(rows[:-1])
    assert [finding.invariant for finding in report.findings] == ["I10"]
    assert "cut off" in report.findings[0].sentence


def test_an_event_of_a_newer_version_is_unreadable_and_no_violation(story: Any) -> None:
    story.tell("engine", "engine.started/9", run="r2")
    report = story.audit()
    assert not report.findings
    assert not report.clean
    assert report.exit_code == EXIT_UNREADABLE


def test_a_missing_field_is_unreadable_and_no_violation(story: Any) -> None:
    del story.refused("a", epoch=1, detail="epoch 1")["status"]
    report = story.audit()
    assert report.exit_code == EXIT_UNREADABLE
    assert "'status'" in report.unreadable[0]


def test_a_component_named_twice_in_one_manifest_is_found(story: Any) -> None:
    event = story.find("generation.published/1", env="d")
    rows = story.rows()
    at = next(index for index, row in enumerate(rows) if row.data == event)
    twice = rows[at].raw.replace(
        b'"manifest":{', b'"manifest":{"db":' + json.dumps(event["manifest"]["db"]).encode() + b","
    )
    report = Audit().run([*rows[:at], _again(rows[at], raw=twice), *rows[at + 1 :]])
    sentences = [finding.sentence for finding in report.findings if finding.invariant == "I4"]
    assert sentences == ["the manifest of d names db twice"]


def test_a_crash_is_no_violation_when_recovery_names_what_was_lost(new_story: Any) -> None:
    story = new_story()
    story.create("a")
    story.act("a")
    story.begun("a")
    story.reopen(crashed=("a",))
    recovered = story.find("generation.published/1")
    recovered["lost_actions"] = [1, 2]
    story.activate("a")
    story.act("a")
    assert story.audit().clean, list(story.audit().lines())
    recovered["lost_actions"] = [1]
    assert [finding.invariant for finding in story.audit().findings] == ["I3"]


def test_a_straggler_may_be_fenced_by_a_switch(new_story: Any) -> None:
    story = new_story()
    story.create("a")
    story.begun("a")
    story.begin("a", "reset", ("a", 1))
    story.drained("a", {"holder": "action click", "how": "fenced", "waited_ms": 1.0})
    story.publish("a", "reset", ("a", 1))
    story.activate("a")
    assert story.audit().clean, list(story.audit().lines())


def test_a_name_is_free_again_after_a_failed_founding(new_story: Any) -> None:
    story = new_story()
    origin = {"env": "a", "generation": 1}
    story.control("a", "environment.created/1", contract="c1", how="create", parent=None, origin=origin)
    story.begin("a", "create")
    story.control("a", "transition.aborted/1", transition="t1", op="create", code="x", reason="x")
    story.create("a")
    story.act("a")
    assert story.audit().clean, list(story.audit().lines())


def test_findings_are_counted_beyond_the_limit_and_not_kept(new_story: Any) -> None:
    story = new_story()
    story.create("a")
    for _ in range(FINDINGS_MAX + 5):
        story.given("a")["epoch"] = 9
    report = story.audit()
    assert len(report.findings) == FINDINGS_MAX
    assert report.findings_left_out == 5


def test_the_report_speaks_to_people_and_to_machines(story: Any) -> None:
    shared_writable_branch(story)
    report = story.audit()
    lines = list(report.lines())
    assert lines[0].startswith("1 violation in ")
    assert "I6 at position" in lines[1]
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["clean"] is False
    assert plain["exit_code"] == EXIT_VIOLATIONS
    assert plain["findings"][0]["invariant"] == "I6"
