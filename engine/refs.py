"""Refs: how people name a moment of an environment's history.

====================  ==========================================================
``shop``              now
``shop@7``            generation 7, as it was published
``shop@7+3``          3 recorded actions after generation 7
``shop#42``           after the 42nd recorded action of the lineage
====================  ==========================================================

Pure. A ref *resolves* to a published generation when one stands exactly at its moment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import islice

import msgspec

from statefork.engine.capsule import Capsule, Generation
from statefork.engine.errors import InvalidName, UnknownRef
from statefork.journal.values import Moment

ENV_NAME_LENGTH_MAX = 63
NUMBER_MAX = 10**12
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


def resolve(ref: Ref, capsules: Mapping[str, Capsule]) -> Moment:
    """The published generation that stands exactly at the ref's moment.

    Of several after the same action it is the earliest, or the latest copy of that one. *Now* is the head, when no
    action came after its publish. Raises UnknownRef when the environment is unknown, when the moment never was, and
    when no generation stands there; the error then names the nearest one.
    """
    capsule = capsules.get(ref.env)
    if capsule is None:
        message = f"{ref}: there is no environment {ref.env!r} in this journal"
        near = get_close_matches(ref.env, islice(capsules, _GUESSED_MAX), n=1)
        raise UnknownRef(message, hint=f"Did you mean {near[0]!r}?" if near else "", ref=str(ref))
    if not capsule.generations:
        raise UnknownRef(f"{ref}: no generation of {ref.env!r} is published yet", ref=str(ref))
    if ref.is_now:
        way, wanted, reached = [capsule.head], capsule.actions, capsule.actions
    elif ref.action is not None:
        way, wanted, reached = _way_to(capsule.head, capsules), ref.action, capsule.actions
    else:
        way, wanted, reached = _way_from(capsule, ref)
    standing = next((index for index, generation in enumerate(way) if generation.actions == wanted), None)
    if standing is None:
        raise _no_generation(ref, way, wanted, reached)
    while standing + 1 < len(way) and way[standing + 1].op != "snapshot":  # the same content under a later name
        standing += 1
    return way[standing].moment


def _way_to(head: Generation, capsules: Mapping[str, Capsule]) -> list[Generation]:
    """The generations from the origin to a head, through parents and past what was abandoned."""
    way = [head]
    while (before := way[-1].previous) is not None:
        way.append(capsules[before.env].generations[before.generation])
    return way[::-1]


def _way_from(capsule: Capsule, ref: Ref) -> tuple[list[Generation], int, int]:
    """A generation and those that go on from it, with the lineage numbers that are meant and that were reached."""
    assert ref.generation is not None
    if ref.generation not in capsule.generations:
        hint = f"Its generations are {min(capsule.generations)} to {max(capsule.generations)}"
        raise UnknownRef(f"{ref}: {ref.env!r} has no generation {ref.generation}", hint=hint, ref=str(ref))
    way = [capsule.generations[ref.generation]]
    start = way[0].actions
    if not ref.plus:
        return way, start, start
    while (after := capsule.generations.get(way[-1].number + 1)) is not None and after.op == "snapshot":
        way.append(after)
    reached = capsule.actions if way[-1].number == capsule.generation else way[-1].actions
    return way, start + ref.plus, reached


def _no_generation(ref: Ref, way: list[Generation], wanted: int, reached: int) -> UnknownRef:
    nearest = min(reversed(way), key=lambda generation: abs(generation.actions - wanted))
    away = wanted - nearest.actions
    where = f"{abs(away)} action{'' if abs(away) == 1 else 's'} {'after' if away > 0 else 'before'} it"
    if wanted > reached:
        message = f"{ref}: that moment never was; the history meant ends after action {reached}, not {wanted}"
    elif ref.is_now:
        message = f"{ref}: the present is not published"
    else:
        message = f"{ref}: no generation was published at that moment"
    return UnknownRef(message, hint=f"The nearest generation is {nearest.moment}; this is {where}", ref=str(ref))
