"""What an audit says of sound journals, of what it can't read, and how it says it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from statefork.replay.audit.report import EXIT_CLEAN, EXIT_UNREADABLE, EXIT_VIOLATIONS, FINDINGS_MAX
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


def shared_writable_branch(story: Any) -> None:
    mine = story.find("generation.published/1", 1, env="a")["manifest"]["db"]
    story.find("generation.published/1", env="d")["manifest"]["db"] = copy.deepcopy(mine)


def _again(row: Row, **changed: Any) -> Row:
    fields = {"position": row.position, "stream": row.stream, "version": row.version, "digest": row.digest}
    return Row(**{**fields, "raw": row.raw, **changed})


def test_an_event_of_a_newer_version_is_unreadable_and_no_violation(story: Any) -> None:
    story.tell("engine", "engine.started/9", run="r2")
    report = story.audit()
    assert not report.findings
    assert not report.clean
    assert report.exit_code == EXIT_UNREADABLE


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("generation.published", "generation"),
        ("generation.published", "actions"),
        ("generation.marked", "generation"),
        ("action.begun", "lease"),
        ("generation.published", "source"),
    ],
)
@pytest.mark.parametrize("number", [1 << 70, -(1 << 70)])
def test_a_number_beyond_all_numbers_is_unreadable(story: Any, kind: str, field: str, number: int) -> None:
    event = story.one(kind)
    event[field] = {"env": "a", "generation": number} if field == "source" else number
    report = story.audit()
    assert any(f"no usable {'moment' if field == 'source' else 'field'} {field!r}" in one for one in report.unreadable)
    assert not report.clean


def test_a_missing_field_is_unreadable_and_no_violation(story: Any) -> None:
    del story.refused("a", epoch=1, detail="epoch 1")["status"]
    report = story.audit()
    assert report.exit_code == EXIT_UNREADABLE
    assert "'status'" in report.unreadable[0]


@pytest.mark.parametrize("how", [{"nearest": None}, {"generation": [2]}, {"generation": 1 << 70}, {"actions": "one"}])
def test_what_went_in_no_usable_form_is_unreadable(story: Any, how: dict[str, Any]) -> None:
    story.find("generations.pruned/1")["pruned"][0].update(how)
    report = story.audit()
    assert report.exit_code == EXIT_UNREADABLE, list(report.lines())
    assert "no usable list 'pruned'" in report.unreadable[0]


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
    assert plain["exit_status"] == EXIT_VIOLATIONS
    assert plain["findings"][0]["invariant"] == "I6"
