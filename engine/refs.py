"""Refs: how people name a moment of an environment's history.

====================  ==========================================================
``shop``              now
``shop@7``            generation 7, as it was published
``shop@7+3``          3 recorded actions after generation 7
``shop#42``           after the 42nd recorded action of the lineage
====================  ==========================================================

Pure. A ref *resolves* to a published generation when one stands exactly at its moment, and its content was not pruned;
every other moment of the past has a *nearest* one before it, and the recorded actions in between lead there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import islice
from typing import NamedTuple

import msgspec

from statefork.engine.capsule import Capsule, Generation
from statefork.engine.errors import GenerationPruned, InvalidName, UnknownRef
from statefork.journal.values import Moment

ENV_NAME_LENGTH_MAX = 63
NUMBER_MAX = 10**12
LEAVING = frozenset({"reset", "restore", "recover"})
"""The operations after which actions may be left behind."""
_GUESSED_MAX = 1_000  # names that a mistyped one is compared with: a guess must not hold the engine up

_NAME = r"[a-z][a-z0-9]*(?:[._-][a-z0-9]+)*"
_NAME_PATTERN = re.compile(_NAME)
_REF_PATTERN = re.compile(
    rf"(?P<env>{_NAME})(?:@(?P<generation>0|[1-9][0-9]*)(?:\+(?P<plus>0|[1-9][0-9]*))?|\#(?P<action>0|[1-9][0-9]*))?"
)
_NAME_RULE = (
    f"An environment's name has at most {ENV_NAME_LENGTH_MAX} small letters and digits, in groups joined by '-', '_' "
    "or '.', and begins with a letter"
)
_FORMS = "Write shop (now), shop@7 (generation 7), shop@7+3 (3 actions after it) or shop#42 (after the 42nd action)"


class Ref(msgspec.Struct, frozen=True, kw_only=True):
    """A named moment. With neither generation nor action it means *now*."""

    env: str
    generation: int | None = None
    plus: int = 0  # actions after the generation
    action: int | None = None  # lineage number; excludes generation

    def __str__(self) -> str:
        if self.action is not None:
            return f"{self.env}#{self.action}"
        if self.generation is None:
            return self.env
        return f"{self.env}@{self.generation}" + (f"+{self.plus}" if self.plus else "")

    @property
    def is_now(self) -> bool:
        """Whether the ref follows its environment instead of naming one moment for ever."""
        return self.generation is None and self.action is None


def check_env_name(name: str) -> str:
    """The name itself, when an environment may bear it. Raises InvalidName with the rule otherwise."""
    if not _is_name(name):
        raise InvalidName(f"{name!r} can't be an environment's name", hint=_NAME_RULE, ref=name)
    return name


def _is_name(text: str) -> bool:
    return len(text) <= ENV_NAME_LENGTH_MAX and _NAME_PATTERN.fullmatch(text) is not None


def parse_ref(text: str) -> Ref:
    """The ref that a text means. Raises UnknownRef, with the forms there are, where it means none."""
    match = _REF_PATTERN.fullmatch(text)
    name = re.split(r"[@#]", text, maxsplit=1)[0]
    if match is None or not _is_name(name):
        raise UnknownRef(f"{text!r} is no ref", hint=_FORMS if _is_name(name) else _NAME_RULE, ref=text)
    if any(len(number) > len(str(NUMBER_MAX)) or int(number) > NUMBER_MAX for number in match.groups()[1:] if number):
        raise UnknownRef(f"{text!r} is no ref: no history is longer than {NUMBER_MAX}", hint=_FORMS, ref=text)
    return Ref(
        env=match["env"],
        generation=int(match["generation"]) if match["generation"] else None,
        plus=int(match["plus"] or 0),
        action=int(match["action"]) if match["action"] else None,
    )


def as_ref(ref: str | Ref | Moment) -> Ref:
    """The ref that a text, a moment or a ref means. Raises UnknownRef."""
    return ref if isinstance(ref, Ref) else parse_ref(str(ref))


def moment_ref(moment: Moment) -> Ref:
    """The ref of a published generation."""
    return Ref(env=moment.env, generation=moment.generation)


class Standing(NamedTuple):
    """A published generation whose content is kept, and how many recorded actions lead from there to a moment.

    ``pruned``: the last generation at or before the moment, where its content is gone: the way leads through it.
    """

    moment: Moment
    after: int
    pruned: Moment | None = None

    @property
    def exact(self) -> bool:
        """Whether it is the moment itself: nothing has to be done again."""
        return not self.after and self.pruned is None


class _Meant(NamedTuple):
    """What a ref means: the generations on the way, the lineage number of its moment, and that of the way's end."""

    way: list[Generation]
    wanted: int
    reached: int


def resolve(ref: Ref, capsules: Mapping[str, Capsule]) -> Moment:
    """The published generation that stands exactly at the ref's moment.

    Of several after the same action it is the earliest, or the latest copy of that one. *Now* is the head, when no
    action came after its publish. Raises UnknownRef when the environment is unknown, when the moment never was, and
    when no generation stands there; the error then names the nearest one. Raises GenerationPruned when one stood there.
    """
    meant = _meant(ref, capsules)
    standing = _standing(meant)
    if not standing:
        raise _no_generation(ref, meant, capsules)
    kept = _latest(standing, capsules)
    if kept is not None:
        return kept.moment
    raise _was_pruned(ref, standing[0], capsules)


def nearest(ref: Ref, capsules: Mapping[str, Capsule]) -> Standing:
    """The last published generation at or before the ref's moment, and the number of actions from there.

    Raises UnknownRef when the environment is unknown, and when the moment never was; but what was abandoned after a
    generation is known to the journal alone.
    """
    meant = _meant(ref, capsules)
    standing = _standing(meant)
    if standing:
        kept = _latest(standing, capsules)
        return Standing(kept.moment, 0) if kept is not None else _through(standing[0], meant.wanted, capsules)
    before = [generation for generation in meant.way if generation.actions < meant.wanted]
    if not before or (meant.wanted > meant.reached and ref.action is not None):
        raise _no_generation(ref, meant, capsules)
    last = before[-1]
    if last.pruned:
        return _through(last, meant.wanted, capsules)
    first = len(before) - 1
    while first and before[first].op != "snapshot":
        first -= 1
    kept = _latest(before[first:], capsules) or last
    return Standing(kept.moment, meant.wanted - kept.actions)


def _latest(same: list[Generation], capsules: Mapping[str, Capsule]) -> Generation | None:
    """The latest that is kept of some that hold the same, not of an environment that only helped, where there is one.

    Whoever reads of it should not meet a name that was never told.
    """
    kept = [generation for generation in reversed(same) if not generation.pruned]
    return next((generation for generation in kept if not capsules[generation.env].helps), kept[0] if kept else None)


def to_mark(ref: Ref, capsules: Mapping[str, Capsule]) -> Moment:
    """The generation that stands at a moment which is to be marked. Raises as ``resolve`` does, and says what to do."""
    try:
        return resolve(ref, capsules)
    except GenerationPruned:
        raise
    except UnknownRef as error:
        nearest(ref, capsules)  # raises where the moment never was
        error.hint = (
            f"A mark is put on a generation: `statefork fork '{ref}'`, `statefork snapshot` of the child, and mark that"
            f" (for the present, `statefork snapshot {ref.env}` first). {error.hint}"
        )
        raise


def _through(gone: Generation, wanted: int, capsules: Mapping[str, Capsule]) -> Standing:
    """From where a moment is made that lies at or behind a pruned generation."""
    start = _kept_before(gone, capsules)
    return Standing(start.moment, wanted - start.actions, gone.moment)


def _kept_before(gone: Generation, capsules: Mapping[str, Capsule]) -> Generation:
    *way, _ = _way_to(gone, capsules)
    return next(generation for generation in reversed(way) if not generation.pruned)  # the first one never goes


def _standing(meant: _Meant) -> list[Generation]:
    """The generations that stand exactly there: the earliest, and the same content under later names."""
    way = meant.way
    at = next((index for index, generation in enumerate(way) if generation.actions == meant.wanted), None)
    if at is None:
        return []
    end = at + 1
    while end < len(way) and way[end].op != "snapshot":
        end += 1
    return way[at:end]


def _meant(ref: Ref, capsules: Mapping[str, Capsule]) -> _Meant:
    capsule = capsules.get(ref.env)
    if capsule is None:
        message = f"{ref}: there is no environment {ref.env!r} in this journal"
        near = get_close_matches(ref.env, islice(capsules, _GUESSED_MAX), n=1)
        raise UnknownRef(message, hint=f"Did you mean {near[0]!r}?" if near else "", ref=str(ref))
    if not capsule.generations:
        raise UnknownRef(f"{ref}: no generation of {ref.env!r} is published yet", ref=str(ref))
    if ref.is_now:
        return _Meant([capsule.head], capsule.actions, capsule.actions)
    if ref.action is not None:
        return _Meant(_way_to(capsule.head, capsules), ref.action, capsule.actions)
    return _way_from(capsule, ref)


def _way_to(head: Generation, capsules: Mapping[str, Capsule]) -> list[Generation]:
    """The generations from the origin to a head, through parents and past what was abandoned."""
    way = [head]
    while (before := way[-1].previous) is not None:
        way.append(capsules[before.env].generations[before.generation])
    return way[::-1]


def _way_from(capsule: Capsule, ref: Ref) -> _Meant:
    """A generation and those that go on from it."""
    assert ref.generation is not None
    if ref.generation not in capsule.generations:
        hint = f"Its generations are {min(capsule.generations)} to {max(capsule.generations)}"
        raise UnknownRef(f"{ref}: {ref.env!r} has no generation {ref.generation}", hint=hint, ref=str(ref))
    way = [capsule.generations[ref.generation]]
    start = way[0].actions
    if not ref.plus:
        return _Meant(way, start, start)
    while (after := capsule.generations.get(way[-1].number + 1)) is not None and after.op == "snapshot":
        way.append(after)
    reached = capsule.actions if way[-1].number == capsule.generation else way[-1].actions
    return _Meant(way, start + ref.plus, reached)


def _was_pruned(ref: Ref, gone: Generation, capsules: Mapping[str, Capsule]) -> GenerationPruned:
    start = _kept_before(gone, capsules)
    return GenerationPruned(
        f"{ref}: the content of {gone.moment} was pruned",
        hint=f"Fork {ref}: it is made again from {start.moment}",
        ref=str(ref),
    )


def beyond_the_last(env: str, wanted: int, last: int, *, left: bool) -> UnknownRef:
    """The error of a ref by action that is behind the present. ``left``: a reset or restore has left actions behind."""
    have = f"{last or 'no'} action{'' if last == 1 else 's'}"
    hint = f"The last moment is {env}#{last}"
    if left:
        hint += f". What a reset or restore left behind is named from its generation, as in {env}@1+{wanted}"
    ref = f"{env}#{wanted}"
    return UnknownRef(f"{ref}: {env} has {have}", hint=hint, environment=env, ref=ref)


def _no_generation(ref: Ref, meant: _Meant, capsules: Mapping[str, Capsule]) -> UnknownRef:
    way, wanted, reached = meant
    if wanted > reached and ref.action is not None:
        left = any(generation.op in LEAVING for generation in capsules[ref.env].generations.values())
        return beyond_the_last(ref.env, wanted, reached, left=left)
    closest = min(reversed(way), key=lambda generation: abs(generation.actions - wanted))
    away = wanted - closest.actions
    where = f"{abs(away)} action{'' if abs(away) == 1 else 's'} {'after' if away > 0 else 'before'} it"
    if wanted > reached:
        message = f"{ref}: the history meant ends after action {reached}, not {wanted}"
    elif ref.is_now:
        message = f"{ref}: the present is not published"
    else:
        message = f"{ref}: no generation was published at that moment"
    return UnknownRef(message, hint=f"The nearest generation is {closest.moment}; this is {where}", ref=str(ref))
