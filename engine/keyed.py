"""Commands that may be repeated: who gives one again with the same key gets its answer, and nothing happens twice.

A caller that lost the reply (a cut connection, a crash of either side) can't know whether its command had happened.
With a key of its own choice it just asks again. What a command with a key has led to is journaled in the same append as
the effect, so both are there after a crash, or neither is; a command that failed has left no answer and is carried out
anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from statefork.engine.commands import Answer
from statefork.engine.errors import InvalidKey, KeyReused, LimitReached
from statefork.engine.locks import KeyedLocks
from statefork.engine.world import World
from statefork.journal.values import Moment, Value

KEY_CHARS_MAX = 200
_REQUEST_CHARS_MAX = 200


class Note(Value, frozen=True, kw_only=True):
    """What goes into the append of an effect, so that the key leads to it."""

    key: str
    request: str
    part: int = 0
    of: int = 0

    def answer(self, env: str, at: float) -> Answer:
        """The command that keeps it: the environment's generation is the answer."""
        return Answer(env=env, at=at, key=self.key, request=self.request, part=self.part, of=self.of)


class Told:
    """One command while it runs: what it led to when it was given before, and the notes for what it leads to now."""

    def __init__(self, world: World, key: str | None, request: str) -> None:
        self._world = world
        self._key = key
        self._request = request

    @property
    def parts(self) -> Mapping[int, Moment]:
        """The answers so far, by part; empty without a key."""
        known = self._world.answers.get(self._key) if self._key is not None else None
        return known.parts if known is not None else {}

    @property
    def whole(self) -> Moment | None:
        """The answer of a command that has one."""
        return self.parts.get(0)

    def note(self, part: int = 0, *, of: int = 0) -> Note | None:
        """The note of one part; None without a key. ``of``: how many parts there are, which are made of this one."""
        return Note(key=self._key, request=self._request, part=part, of=of) if self._key is not None else None


class Keys:
    """The keys of one engine. Two commands with one key follow each other; the second finds the answer of the first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def command(self, key: str | None, *words: str) -> AsyncIterator[Told]:
        """Around one command, which ``words`` tell. Without a key it is carried out whatever was before.

        Raises KeyReused where the key belongs to another command, InvalidKey, LimitReached.
        """
        request = _request(words)
        told = Told(self._world, key, request)
        if key is None:
            yield told
            return
        check_key(key)
        async with self._locks.holding(key):
            self._check(key, request)
            yield told

    def _check(self, key: str, request: str) -> None:
        known = self._world.answers.get(key)
        if known is not None and known.request != request:
            raise KeyReused(
                f"the key {key!r} was given with another command: {known.request!r}, and now {request!r}",
                hint="Take a new key for each command; only a repetition bears the same one.",
                key=key,
                before=known.request,
                now=request,
            )


def check_key(key: str) -> None:
    """Raises InvalidKey, LimitReached unless the text can be a command's key."""
    if len(key) > KEY_CHARS_MAX:
        raise LimitReached(
            f"a key has at most {KEY_CHARS_MAX} characters, not {len(key)}",
            hint="A uuid, or the number of the rollout and step, is enough.",
            limit="key_chars_max",
            most=KEY_CHARS_MAX,
            asked=len(key),
        )
    if not key:
        raise InvalidKey(
            "an empty text can't be a command's key", hint="Leave the key out, or see why it is empty.", key=key
        )
    if not key.isprintable() or key != key.strip():
        raise InvalidKey(
            f"{key!r} can't be a key: it has a character that can't be printed, or a space at an end",
            hint="Take letters, digits and punctuation.",
            key=key,
        )


def _request(words: Sequence[str]) -> str:
    """The command in words. A long one is told by its beginning and the digest of the whole."""
    text = " ".join(words)
    if len(text) <= _REQUEST_CHARS_MAX:
        return text
    return f"{text[:_REQUEST_CHARS_MAX]}… (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"
