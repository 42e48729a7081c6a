"""What may be wanted of an environment: the commands that :func:`statefork.engine.transitions.decide` takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from statefork.journal.events import Operation
from statefork.journal.values import Component, Held, Moment

Founding = Literal["create", "fork", "clone"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of an environment. ``at``: Unix seconds from the engine's clock."""

    env: str
    at: float


class Found(Command, frozen=True, kw_only=True):
    """A new environment, with the transition that stages its first generation."""

    transition: str
    contract: str
    how: Founding
    origin: Moment
    source: Moment | None = None  # the parent's moment, of forks and clones
    inherited_actions: int = 0


class Begin(Command, frozen=True, kw_only=True):
    """Freeze the environment for a transition."""

    transition: str
    op: Operation
    source: Moment | None = None


class Publish(Command, frozen=True, kw_only=True):
    """End the transition under way: the head moves. With ``activation`` the successor serves at once.

    ``required`` are the contract's resources: a manifest that does not name each exactly once is refused (I4).
    ``source_actions`` is the length of the source's lineage, for operations that have a source.
    """

    manifest: Mapping[str, Component]
    required: frozenset[str]
    held: tuple[Held, ...] = ()
    source_actions: int = 0
    activation: int = 0  # 0: the environment is not bound by this publish
    timings_ms: dict[str, float] = {}
    probed_ms: dict[str, float] = {}  # of the activation: every resource, with what bind and probe took


class Abort(Command, frozen=True, kw_only=True):
    """End the transition under way without a publish."""

    code: str
    reason: str
    component: str = ""
    held: tuple[Held, ...] = ()
    activation: int = 0  # of what was being staged


class Recover(Command, frozen=True, kw_only=True):
    """The tail of a serving environment is lost: its last published components become a new generation."""

    transition: str


class Activate(Command, frozen=True, kw_only=True):
    """A parked environment was bound and probed."""

    activation: int
    timings_ms: dict[str, float] = {}
    probed_ms: dict[str, float] = {}


class Park(Command, frozen=True, kw_only=True):
    """A serving environment whose tail is sealed gives up its slot."""

    reason: str = ""


class Retire(Command, frozen=True, kw_only=True):
    """The end of an environment."""


class NoteFork(Command, frozen=True, kw_only=True):
    """Tell the parent of a child; goes into the same append as the child's first publish."""

    generation: int
    child: str
    how: Literal["fork", "clone"]


class Answer(Command, frozen=True, kw_only=True):
    """Keep what a command with a key has led to: the environment's generation after the commands before this one."""

    key: str
    request: str
    part: int = 0
