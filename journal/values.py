"""Values that events carry and that every room shares: moments, sealed components, handles, observations."""

from __future__ import annotations

from typing import Any

import msgspec

_SECRETS = frozenset({"password", "ticket_key_hex"})  # of an address
_COVERED = "(not shown)"

Json = None | bool | int | float | str | list[Any] | dict[str, Any]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the immutable values below."""


class Moment(Value, frozen=True, kw_only=True):
    """One published generation of one environment; written ``env@generation``."""

    env: str
    generation: int

    def __str__(self) -> str:
        return f"{self.env}@{self.generation}"


class Identity(Value, frozen=True, kw_only=True):
    """Whom a request or binding belongs to: an environment, its epoch and one stay of it in a slot."""

    env: str
    epoch: int
    activation: int

    def __str__(self) -> str:
        return f"{self.env}/e{self.epoch}/a{self.activation}"


class Sealed(Value, frozen=True, kw_only=True):
    """A resource's immutable version.

    ``journal``, here and below, says whose it is: the id of the journal, or of the place where several state
    directories share it. ``version`` is unique within (journal, resource). ``data`` is the adapter's own small record:
    whatever it needs to find the version again after a restart (paths are relative to the state directory).
    """

    journal: str
    resource: str
    adapter: str
    version: str
    data: dict[str, Json] = {}


class Branch(Value, frozen=True, kw_only=True):
    """A resource's writable, private continuation of a sealed version, owned by one (environment, epoch)."""

    journal: str
    resource: str
    adapter: str
    id: str
    env: str
    epoch: int
    base: str  # the version of the Sealed it was opened over
    data: dict[str, Json] = {}


class Binding(Value, frozen=True, kw_only=True):
    """Where a branch is reachable now. ``address`` is meant for dependants and evaluators: paths, URLs, ports."""

    journal: str
    resource: str
    adapter: str
    branch: str
    identity: Identity
    address: dict[str, Json] = {}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Binding({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The fields, with the secrets of the address covered: what is printed ends in logs and notebooks."""
        shown = {key: _COVERED if key in _SECRETS and value else value for key, value in self.address.items()}
        fields = [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "address"]
        return [*fields, ("address", shown)]


Handle = Sealed | Branch | Binding


class Component(Value, frozen=True, kw_only=True):
    """One resource's place in a manifest: its sealed version and the resources it depends on."""

    sealed: Sealed
    durability: str  # authoritative | derived | ephemeral
    depends_on: tuple[str, ...] = ()


class Pruned(Value, frozen=True, kw_only=True):
    """A generation whose content goes: carrying out ``actions`` recorded ones again after ``nearest`` makes it anew."""

    generation: int
    nearest: Moment
    actions: int  # 0 where what came from outside is all that was done since


class Held(Value, frozen=True, kw_only=True):
    """Something that was open when a transition froze the environment, and how it ended."""

    holder: str  # what a person would call it: "action click", "GET http://shop.example/slow", "thread mailer"
    how: str  # ended | revoked | fenced | held | refused
    waited_ms: float = 0.0


class Conditions(Value, frozen=True, kw_only=True):
    """Chance and time, as the code of an environment meets them from one action's beginning to the next.

    ``seed`` (hex): what its random numbers are drawn from; empty: chance is real. ``now`` (Unix seconds): what its
    clocks say at the beginning; 0.0: they are real.
    """

    seed: str = ""
    now: float = 0.0


class Rest(Value, frozen=True, kw_only=True):
    """What is left of an observation without the elements that the contract's masks took out: digests of blobs.

    ``selectors``: what was taken out, as it was written then. ``screenshot``: only where pixels are compared.
    """

    selectors: tuple[str, ...]
    snapshot: str
    screenshot: str = ""


class Observation(Value, frozen=True, kw_only=True):
    """What was seen after an action: digests of blobs, never the bytes.

    ``digest`` covers what a replay must reproduce (url, title, accessibility snapshot). ``screenshot`` is evidence for
    people, and outside of the digest unless ``pixels`` says otherwise: so it is in strict determinism. ``parts`` holds
    further named blobs.
    """

    digest: str
    url: str = ""
    title: str = ""
    snapshot: str = ""
    screenshot: str = ""
    parts: dict[str, str] = {}
    value: Json = None
    pixels: bool = False
    rest: Rest | None = None  # None: the contract took no elements out
