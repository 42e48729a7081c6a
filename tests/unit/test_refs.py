"""Refs: what each form means, which generation stands at a moment, and what is told where none does."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefork.engine.capsule import Capsule, evolve
from statefork.engine.errors import UnknownRef
from statefork.engine.refs import Ref, check_env_name, moment_ref, nearest, parse_ref, resolve
from statefork.journal.events import (
    ActionBegun,
    EnvironmentActivated,
    EnvironmentCreated,
    Event,
    GenerationPublished,
    Operation,
    TransitionBegun,
    TransitionDrained,
)
from statefork.journal.values import Moment

pytestmark = pytest.mark.smoke


class Story:
    """An environment's events, told in the words of its user."""

    def __init__(self, env: str, parent: Moment | None = None, actions: int = 0) -> None:
        self.env = env
        self.capsule: Capsule | None = None
        self.actions = actions
        how = "fork" if parent else "create"
        origin = Moment(env=env, generation=1)
        self._tell(
            EnvironmentCreated(
                at=0, env=env, contract="c", how=how, parent=parent, origin=origin, inherited_actions=actions
            )
        )
        self._tell(TransitionBegun(at=0, env=env, transition="t", op=how, base=0, source=parent))
        self._publish(how, 1, parent)

    def _tell(self, event: Event) -> None:
        self.capsule = evolve(self.capsule, event)

    def _publish(self, op: Operation, generation: int, source: Moment | None = None) -> None:
        self._tell(
            GenerationPublished(
                at=0,
                env=self.env,
                transition="t",
                op=op,
                generation=generation,
                epoch=1,
                contract="c",
                manifest={},
                source=source,
                actions=self.actions,
            )
        )
        if op != "snapshot":
            self._tell(EnvironmentActivated(at=0, env=self.env, generation=generation, activation=generation))

    def act(self, times: int) -> Story:
        """The agent acts that many times."""
        for _ in range(times):
            self.actions += 1
            self._tell(
                ActionBegun(
                    at=0, env=self.env, generation=1, epoch=1, activation=1, lease=1, number=self.actions, action={}
                )
            )
        return self

    def snapshot(self) -> Story:
        """A continuing generation."""
        return self._switch("snapshot", None)

    def restore(self, generation: int) -> Story:
        """Back to an earlier generation of its own."""
        assert self.capsule is not None
        self.actions = self.capsule.generations[generation].actions
        return self._switch("restore", Moment(env=self.env, generation=generation))

    def _switch(self, op: Operation, source: Moment | None) -> Story:
        assert self.capsule is not None
        base = self.capsule.generation
        self._tell(TransitionBegun(at=0, env=self.env, transition="t", op=op, base=base, source=source))
        self._tell(TransitionDrained(at=0, env=self.env, transition="t"))
        self._publish(op, base + 1, source)
        return self


def told(*stories: Story) -> dict[str, Capsule]:
    """The capsules that stories lead to."""
    return {story.env: story.capsule for story in stories if story.capsule is not None}


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("shop", Ref(env="shop")),
        ("shop-1.b_2", Ref(env="shop-1.b_2")),
        ("shop@7", Ref(env="shop", generation=7)),
        ("shop@7+3", Ref(env="shop", generation=7, plus=3)),
        ("shop#42", Ref(env="shop", action=42)),
        ("shop#0", Ref(env="shop", action=0)),
    ],
)
def test_given_each_form_when_parsed_then_it_means_that_and_is_written_the_same(text: str, ref: Ref) -> None:
    assert parse_ref(text) == ref
    assert str(ref) == text
    assert ref.is_now is (ref in (Ref(env="shop"), Ref(env="shop-1.b_2")))


@pytest.mark.parametrize(
    "text",
    [
        *("", "@7", "shop@", "shop@-1", "shop@07", "shop@7+", "shop@+3", "shop+3", "shop#", "shop#4+1", "shop@7#4"),
        *("shop @7", "shop@7 ", "shop\n", "Shop", "1shop", "shop-", "sh..op", "../shop", "env/shop", "shop@\u0663"),
        *("a" * 64, "shop@" + "9" * 40),
    ],
)
def test_given_malformed_text_when_parsed_then_it_is_an_unknown_ref_with_the_rule(text: str) -> None:
    with pytest.raises(UnknownRef) as caught:
        parse_ref(text)
    assert caught.value.code == "unknown_ref"
    assert caught.value.facts["ref"] == text
    assert caught.value.hint


def test_given_a_name_when_checked_then_it_is_given_back_or_refused() -> None:
    assert check_env_name("shop-1") == "shop-1"
    with pytest.raises(UnknownRef, match=r"begins with a letter"):
        check_env_name("Shop 1")


env_names = st.from_regex(r"[a-z][a-z0-9]{0,5}([._-][a-z0-9]{1,5}){0,3}", fullmatch=True)
counts = st.integers(min_value=0, max_value=10**12)
refs = st.one_of(
    st.builds(Ref, env=env_names),
    st.builds(Ref, env=env_names, generation=counts, plus=counts),
    st.builds(Ref, env=env_names, action=counts),
)


@given(refs)
def test_given_any_ref_when_written_and_parsed_then_it_is_the_same(ref: Ref) -> None:
    assert parse_ref(str(ref)) == ref


@given(st.text(alphabet="shop17@+#.-_ \n", max_size=12))
def test_given_any_text_when_parsed_then_it_is_refused_or_written_back_with_the_same_meaning(text: str) -> None:
    try:
        ref = parse_ref(text)
    except UnknownRef:
        return
    assert parse_ref(str(ref)) == ref


def test_given_generations_when_resolved_by_number_then_that_one_is_meant() -> None:
    world = told(Story("shop").act(2).snapshot())
    assert resolve(parse_ref("shop@2"), world) == Moment(env="shop", generation=2)
    assert moment_ref(Moment(env="shop", generation=2)) == parse_ref("shop@2")
    with pytest.raises(UnknownRef, match=r"'shop' has no generation 3. Its generations are 1 to 2"):
        resolve(parse_ref("shop@3"), world)


def test_given_nothing_done_since_the_publish_when_now_is_resolved_then_it_is_the_head() -> None:
    story = Story("shop").act(2).snapshot()
    assert resolve(parse_ref("shop"), told(story)) == Moment(env="shop", generation=2)
    with pytest.raises(
        UnknownRef, match=r"present is not published. The nearest generation is shop@2; this is 1 action after"
    ):
        resolve(parse_ref("shop"), told(story.act(1)))


def test_given_snapshots_when_resolved_by_actions_after_one_then_the_generation_at_that_moment_answers() -> None:
    world = told(Story("shop").act(2).snapshot().act(3).snapshot().snapshot().act(1))
    assert resolve(parse_ref("shop@1+2"), world) == Moment(env="shop", generation=2)
    assert resolve(parse_ref("shop@1+5"), world) == Moment(env="shop", generation=3)
    assert resolve(parse_ref("shop@2+3"), world) == Moment(env="shop", generation=3)
    with pytest.raises(
        UnknownRef, match=r"shop@1\+4: no generation.*The nearest generation is shop@4; this is 1 action before"
    ):
        resolve(parse_ref("shop@1+4"), world)
    with pytest.raises(UnknownRef, match=r"the history meant ends after action 6, not 7"):
        resolve(parse_ref("shop@2+5"), world)


def test_given_a_restore_when_resolved_then_actions_after_a_generation_end_at_the_switch() -> None:
    world = told(Story("shop").act(2).snapshot().act(3).snapshot().restore(2).act(3).snapshot())
    assert resolve(parse_ref("shop@2+3"), world) == Moment(env="shop", generation=3)
    assert resolve(parse_ref("shop@4+3"), world) == Moment(env="shop", generation=5)
    with pytest.raises(UnknownRef, match="the history meant ends"):
        resolve(parse_ref("shop@2+4"), world)


def test_given_an_abandoned_future_when_resolved_by_action_then_the_present_lineage_is_meant() -> None:
    world = told(Story("shop").act(2).snapshot().act(3).snapshot().restore(2).act(3).snapshot())
    assert resolve(parse_ref("shop#5"), world) == Moment(env="shop", generation=5)
    assert resolve(parse_ref("shop#2"), world) == Moment(env="shop", generation=4)  # the copy of 2 that was restored
    assert resolve(parse_ref("shop#0"), world) == Moment(env="shop", generation=1)


def test_given_a_fork_when_resolved_by_action_then_the_parents_generations_are_found() -> None:
    parent = Story("shop").act(2).snapshot().act(2).snapshot()
    child = Story("child", parent=Moment(env="shop", generation=3), actions=4).act(1)
    world = told(parent.act(5), child)
    assert resolve(parse_ref("child#2"), world) == Moment(env="shop", generation=2)
    assert resolve(parse_ref("child#4"), world) == Moment(env="child", generation=1)
    with pytest.raises(
        UnknownRef, match=r"no generation was published.*nearest generation is child@1; this is 1 action after"
    ):
        resolve(parse_ref("child#5"), world)
    with pytest.raises(UnknownRef, match=r"child has 5 actions. The last moment is child#5$"):
        resolve(parse_ref("child#9"), world)


def test_given_a_journal_without_the_environment_when_resolved_then_a_like_name_is_offered() -> None:
    world = told(Story("shop-1"))
    with pytest.raises(UnknownRef, match=r"no environment 'shop-l' in this journal. Did you mean 'shop-1'"):
        resolve(parse_ref("shop-l@1"), world)
    with pytest.raises(UnknownRef, match=r"no environment 'x' in this journal$"):
        resolve(parse_ref("x"), world)


@given(st.lists(st.sampled_from(["act", "snapshot", "restore"]), max_size=12))
def test_given_any_history_when_a_generation_resolves_then_it_stands_after_that_many_actions(deeds: list[str]) -> None:
    story = Story("shop")
    for deed in deeds:
        if deed == "act":
            story.act(1)
        else:
            story = story.snapshot() if deed == "snapshot" else story.restore(1)
    world = told(story)
    capsule = world["shop"]
    for number in range(capsule.actions + 2):
        with contextlib.suppress(UnknownRef):
            found = resolve(Ref(env="shop", action=number), world)
            assert capsule.generations[found.generation].actions == number


def test_given_a_number_behind_the_last_action_when_resolved_then_resets_are_spoken_of_only_where_there_were_some() -> (
    None
):
    with pytest.raises(UnknownRef, match=r"shop#9: shop has 1 action. The last moment is shop#1$"):
        resolve(parse_ref("shop#9"), told(Story("shop").act(1)))
    with pytest.raises(UnknownRef, match=r"shop has no actions. The last moment is shop#0$"):
        resolve(parse_ref("shop#9"), told(Story("shop")))
    world = told(Story("shop").act(2).snapshot().act(3).snapshot().restore(2))
    with pytest.raises(UnknownRef, match=r"has 2 actions. The last moment is shop#2. What .* left .* as in shop@1\+5"):
        resolve(parse_ref("shop#5"), world)


def test_given_copies_in_an_environment_that_helped_when_resolved_then_what_they_are_copies_of_answers() -> None:
    shop = Story("shop").act(1).snapshot().act(1)
    helper = Story("shop-d1", parent=Moment(env="shop", generation=2), actions=1).act(1).snapshot()
    assert helper.capsule is not None
    helper.capsule = msgspec.structs.replace(helper.capsule, helps="making shop#2")
    child = Story("child", parent=Moment(env="shop-d1", generation=2), actions=2).act(1)
    world = told(shop, helper, child)
    assert resolve(parse_ref("child#1"), world) == Moment(env="shop", generation=2)
    assert resolve(parse_ref("child#2"), world) == Moment(env="child", generation=1)
    late = Story("late", parent=Moment(env="shop-d1", generation=1), actions=1).act(2)
    assert nearest(parse_ref("late#2"), told(shop, helper, late)).moment == Moment(env="late", generation=1)
