"""What a comparison proves: equal, equal under the masks, or not."""

from __future__ import annotations

from typing import Literal

import pytest

from statefork.engine.contract import parse_contract
from statefork.engine.errors import ContractError
from statefork.engine.masks import Masks
from statefork.journal.values import Moment, Observation
from statefork.replay.lineage import Act, Trajectory, Witnessed
from statefork.replay.script import Played
from statefork.replay.verdict import Judge

BLOBS = {
    "a": b"- heading: Thank you\n- text: Order 100017, placed 12:01",
    "b": b"- heading: Thank you\n- text: Order 100018, placed 12:02",
    "c": b"- heading: Sorry\n- text: Order 100018, placed 12:02",
}
MASKS = Masks(text=(r"Order \d+", r"placed \d\d:\d\d"))


def seen(snapshot: str, title: str = "Shop", outcome: Literal["ok", "failed"] = "ok") -> Played:
    observation = Observation(digest=f"{snapshot} {title}", url="http://shop/", title=title, snapshot=snapshot)
    return Played(outcome=outcome, observation=observation)


RECORDED = Observation(digest="a Shop", url="http://shop/", title="Shop", snapshot="a")


def recording_of(*witnessed: Witnessed) -> Trajectory:
    return Trajectory(
        env="a",
        generation=1,
        origin=Moment(env="a", generation=1),
        contract="c",
        steps=tuple(Act(number=n, action={"type": "click", "name": "Buy"}) for n in range(1, len(witnessed) + 1)),
        witnessed=witnessed,
    )


def judged(played: Played, masks: Masks) -> Judge:
    recording = recording_of(Witnessed(position=1, outcome="ok", observation=RECORDED))
    judge = Judge(recording, BLOBS.__getitem__, masks)
    judge.note(played)
    return judge


@pytest.mark.parametrize(
    ("played", "masks", "verdict"),
    [
        (seen("a"), MASKS, "exact-observed"),
        (seen("b"), MASKS, "equivalent"),
        (seen("b"), Masks(), "diverged"),
        (seen("b"), Masks(text=(r"Order \d+",)), "diverged"),
        (seen("c"), MASKS, "diverged"),
        (seen("b", title="Other"), MASKS, "diverged"),
        (seen("b", outcome="failed"), MASKS, "diverged"),
    ],
)
def test_what_may_differ_is_said_by_the_masks_alone(played: Played, masks: Masks, verdict: str) -> None:
    judge = judged(played, masks)
    assert judge.verdict == verdict
    assert judge.masked == ([1] if verdict == "equivalent" else [])


@pytest.mark.parametrize(
    ("witnessed", "played", "outcome", "why"),
    [
        (Witnessed(position=1, outcome="ok", observation=RECORDED), seen("a"), "same", ""),
        (Witnessed(position=1, outcome="ok", observation=RECORDED), seen("b"), "masked", "another page content"),
        (Witnessed(position=1, outcome="ok", observation=RECORDED), seen("c"), "differs", "another page content"),
        (
            Witnessed(position=1, outcome="ok", observation=RECORDED),
            Played(outcome="skipped", error="it is lost"),
            "skipped",
            "it is lost",
        ),
        (
            Witnessed(position=1, outcome="unknown"),
            seen("a"),
            "not compared",
            "when it was recorded, its outcome was unknown",
        ),
        (Witnessed(position=1, outcome="ok"), seen("a"), "not compared", "nothing was observed when it was recorded"),
    ],
)
def test_each_step_has_its_result(witnessed: Witnessed, played: Played, outcome: str, why: str) -> None:
    judge = Judge(recording_of(witnessed, witnessed), BLOBS.__getitem__, MASKS)
    result = judge.note(played)
    assert (result.place, result.of, result.number, result.kind) == (1, 2, 1, "action")
    assert (result.done, result.outcome, result.why) == ("click name='Buy'", outcome, why)
    assert result.digest == (played.observation.digest if played.observation is not None else "")
    assert tuple(judge.by_step) == (result,)
    judge.stop()
    assert judge.unverified[-1] == "stopped after step 1 of 2: what came after was not done again"


def test_what_was_not_seen_with_the_difference_is_looked_at_after_it() -> None:
    judge = Judge(recording_of(Witnessed(position=1, outcome="ok", observation=RECORDED)), BLOBS.__getitem__)
    judge.note(Played(outcome="unknown", error="it took longer than 30 s"))
    result = judge.look_closer(seen("c").observation, "png")
    assert (result.outcome, result.title, result.screenshot) == ("differs", "Shop", "png")
    found = judge.divergence
    assert found is not None
    assert (found.what, found.seen.outcome, found.seen.screenshot) == ("it was ok and is now unknown", "unknown", "png")
    assert "+- heading: Sorry" in found.diff
    assert tuple(judge.by_step) == (result,)


CONTRACT = '[contract]\nname = "a"\n[resources.db]\nadapter = "memory"\n'


def test_masks_are_no_part_of_what_a_contract_is() -> None:
    table = '[masks]\ntext = ["Order \\\\d+"]\nselectors = ["#clock"]\n[masks.columns]\ndb = ["a.b", "s.t.c"]\n'
    masked = parse_contract(f"{CONTRACT}{table}", "a.toml")
    assert masked.masks == Masks(text=(r"Order \d+",), selectors=("#clock",), columns={"db": ("a.b", "s.t.c")})
    assert masked.masks.columns_of("db") == (("a", "b"), ("s.t", "c"))
    assert str(masked.selectors[0].place) == "a.toml:7:14"
    cookies = parse_contract(f'{CONTRACT}[masks.cookies]\ndb = ["visitor"]', "a.toml").masks
    assert (bool(cookies), cookies.cookies["db"]) == (True, ("visitor",))
    assert masked.digest == parse_contract(CONTRACT, "a.toml").digest


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("[masks]\ntexts = []", "6:1: masks.texts: unknown key 'texts'; there are: text, selectors, columns, cookies"),
        ('[masks]\ntext = "x"', "6:1: masks.text: must be a list of regular expressions"),
        ('[masks]\ntext = ["("]', "masks.text[0]: is no regular expression"),
        ('[masks]\ntext = ["x*"]', "masks.text[0]: matches the empty text"),
        ("[masks]\ntext = [3]", "masks.text[0]: must be a regular expression"),
        ('[masks]\nselectors = "p"', "6:1: masks.selectors: must be a list of CSS selectors"),
        ('[masks]\nselectors = ["p", " "]', "6:19: masks.selectors[1]: must be a CSS selector"),
        ("[masks]\ncolumns = []", "6:1: masks.columns: must be a table: of each database, a list of columns"),
        ('[masks.columns]\nbd = ["a.b"]', "6:1: masks.columns.bd: unknown resource 'bd'; there are: db"),
        ('[masks.columns]\ndb = "a.b"', "6:1: masks.columns.db: must be a list of columns (table.column)"),
        ('[masks.columns]\ndb = ["a.b", "a"]', "6:14: masks.columns.db[1]: must be a table's column, such as"),
        ('[masks.columns]\ndb = [".b"]', "masks.columns.db[0]: must be a table's column"),
        (
            "[masks]\ncookies = ['a']",
            "6:1: masks.cookies: must be a table: of each browser, a list of names of cookies",
        ),
        ("[masks.cookies]\nbd = ['a']", "6:1: masks.cookies.bd: unknown resource 'bd'; there are: db"),
        ("[masks.cookies]\ndb = ['a=b']", "masks.cookies.db[0]: must be the name of a cookie, not 'a=b'"),
    ],
)
def test_a_mask_that_is_none_is_refused_at_its_place(table: str, told: str) -> None:
    with pytest.raises(ContractError) as caught:
        parse_contract(f"{CONTRACT}{table}\n", "a.toml")
    assert told in str(caught.value)
