"""The spaces of an environment: any text, actions as JSON, pixels; and texts in the shared memory of AsyncVectorEnv.

Gymnasium's own ``Text`` wants to know every character beforehand. A page may show any.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import gymnasium.spaces
import msgspec
import numpy as np
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

TEXT_CHARS_MAX = 200_000
_HEAD_BYTES = 4  # the length of what follows, in bytes
_CHAR_BYTES = 4  # at most, in UTF-8


class Unicode(gymnasium.spaces.Text):
    """Any text of at most ``max_length`` characters. Samples are ASCII."""

    def __init__(self, max_length: int = TEXT_CHARS_MAX, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, seed=seed)

    def contains(self, x: object) -> bool:
        """Whether it is such a text."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short text."""
        return "".join(self.np_random.choice(list("abcdefgh \n"), size=int(self.np_random.integers(0, 20))))

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__.get("max_length") == self.max_length

    __hash__ = None  # type: ignore[assignment]  # as of Gymnasium's own spaces, which can be changed


class Actions(Unicode):
    """An action as JSON text, as a mapping, or as a value such as ``Click(text="Pay")``; an empty text only looks.

    ``draw`` makes samples.
    """

    def __init__(
        self, draw: Callable[[np.random.Generator], str], seed: int | np.random.Generator | None = None
    ) -> None:
        self._draw = draw
        super().__init__(4 * 1024 * 1024, seed=seed)

    def contains(self, x: object) -> bool:
        """Whether it is of such a kind; whether the world knows the action is told by the step."""
        return super().contains(x) or isinstance(x, Mapping | msgspec.Struct)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """An action that never leaves the page."""
        return self._draw(self.np_random)

    def __repr__(self) -> str:
        return "Actions()"


def draw_browsing(random: np.random.Generator) -> str:
    """Turn the wheel, or move the focus on."""
    if random.integers(2):
        return msgspec.json.encode({"type": "scroll", "dy": int(random.integers(-4, 5)) * 100}).decode()
    return '{"type":"press","key":"Tab"}'


def draw_nothing(_: np.random.Generator) -> str:
    """Only look: what else a world knows is not known here."""
    return ""


def observation_space(picture: tuple[int, int] | None, text_max: int) -> gymnasium.spaces.Dict:
    """What is seen. ``picture``: height and width of a screenshot, where there is one."""
    parts: dict[str, gymnasium.Space[Any]] = {
        "url": Unicode(text_max),
        "title": Unicode(text_max),
        "text": Unicode(text_max),
        "last_action_error": Unicode(text_max),
    }
    if picture is not None:
        parts["screenshot"] = gymnasium.spaces.Box(0, 255, shape=(*picture, 3), dtype=np.uint8)
    return gymnasium.spaces.Dict(parts)


def _room(space: Unicode) -> int:
    return _HEAD_BYTES + _CHAR_BYTES * space.max_length


@create_shared_memory.register(Unicode)
def _create(space: Unicode, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("c", n * _room(space))


@write_to_shared_memory.register(Unicode)
def _write(space: Unicode, index: int, value: str, shared_memory: Any) -> None:
    data = value[: space.max_length].encode("utf-8", "replace")
    at = index * _room(space)
    view = memoryview(shared_memory.get_obj()).cast("B")
    view[at : at + _HEAD_BYTES + len(data)] = len(data).to_bytes(_HEAD_BYTES, "big") + data


class _Texts(Sequence[str]):
    """The texts that stand in the memory now: AsyncVectorEnv asks once for what it then copies after each step."""

    def __init__(self, space: Unicode, shared_memory: Any, n: int) -> None:
        self._room = _room(space)
        self._view = memoryview(shared_memory.get_obj()).cast("B")
        self._count = n

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        at = range(self._count)[index] * self._room + _HEAD_BYTES
        length = int.from_bytes(self._view[at - _HEAD_BYTES : at], "big")
        return bytes(self._view[at : at + length]).decode()

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


@read_from_shared_memory.register(Unicode)
def _read(space: Unicode, shared_memory: Any, n: int = 1) -> Sequence[str]:
    return _Texts(space, shared_memory, n)
