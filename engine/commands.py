"""What may be wanted of an environment: the commands that :func:`statefork.engine.decisions.decide` takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from statefork.engine.policy import Choice
from statefork.journal.events import GenerationPublished, Operation
from statefork.journal.values import Component, Held, Moment, Pruned, Value

Founding = Literal["create", "fork", "clone"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of an environment. ``at``: Unix seconds from the engine's clock."""

    env: str
    at: float


class Found(Command, frozen=True, kw_only=True):
    """A new environment, with the transition that stages its first generation."""

    transition: str
    contract: str
    how: Founding | Literal["import"]
    origin: Moment
    source: Moment | None = None  # the parent's moment, of forks and clones
    inherited_actions: int = 0
    place: str = ""  # the state directory that has it, where several share the journal
    helps: str = ""  # what it is there for, where it is of use to one command alone


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


class Brought(Value, frozen=True, kw_only=True):
    """A generation that an import brings: its components here, and the event that published it there."""

    manifest: dict[str, Component]
    published: GenerationPublished

    @property
    def moment(self) -> Moment:
        """What it is called there."""
        return Moment(env=self.published.env, generation=self.published.generation)


class Arrive(Command, frozen=True, kw_only=True):
    """End an import: its generations are published, the first as the origin, and those after it go on from there.

    The other fields are those of :class:`statefork.journal.events.EnvironmentImported`.
    """

    generations: tuple[Brought, ...]
    required: frozenset[str]
    journal: str
    source: Moment
    heads: str
    file: str
    statefork: str


class Answer(Command, frozen=True, kw_only=True):
    """Keep what a command with a key has led to: the environment's generation after the commands before this one."""

    key: str
    request: str
    part: int = 0
    of: int = 0


class Prune(Command, frozen=True, kw_only=True):
    """Let the content of some generations go. ``retention``: what asks for it, in words; ``by``: who."""

    retention: str
    pruned: tuple[Pruned, ...]
    by: Literal["policy", "command"]


class Mark(Command, frozen=True, kw_only=True):
    """Give a generation a mark; an empty one takes it away."""

    generation: int
    mark: str


class Choose(Command, frozen=True, kw_only=True):
    """Choose when snapshots are taken by themselves, and which generations stay."""

    choice: Choice
