"""One environment as it must be, and the witnesses that are written into it."""

from __future__ import annotations

import msgspec

from statefork.engine.leases import Lease
from statefork.journal.values import Identity, Json

Content = dict[str, dict[str, Json]]  # store -> what is in it


class Witness(msgspec.Struct, frozen=True):
    """A value that says where it comes from; written ``env/epoch#number:by``."""

    env: str
    epoch: int
    number: int
    by: str

    def __str__(self) -> str:
        return f"{self.env}/{self.epoch}#{self.number}:{self.by}"

    @classmethod
    def read(cls, value: Json) -> Witness | None:
        """The witness that a value is; None for any other value (the base's, the page's visits)."""
        if not isinstance(value, str) or "#" not in value:
            return None
        where, _, what = value.partition("#")
        env, _, epoch = where.rpartition("/")
        number, _, by = what.partition(":")
        return cls(env, int(epoch), int(number), by)


class Holder(msgspec.Struct, eq=False):
    """Something that runs on one generation of an environment."""

    what: str
    generation: int
    lease: Lease | None = None
    joinable: bool = True

    @property
    def ended(self) -> str:
        """Why it does not count any more, where it was told to end."""
        return self.lease.revoked or self.lease.gate.abandoned if self.lease is not None else ""


class Model(msgspec.Struct, eq=False):
    """One environment as it must be."""

    env: str
    origin: str
    content: Content = {}
    generation: int = 0
    epoch: int = 0
    activation: int = 0
    serving: bool = False
    retired: bool = False
    was_bound: bool = False  # when the last engine ended
    chosen: tuple[str, str] = ("", "")  # its policies of snapshots and retention; empty: the contract's
    frozen: str = ""  # the transition under way
    op: str = ""
    children: list[str] = []
    holders: list[Holder] = []
    watchers: list[list[Content]] = []

    def serves(self, identity: Identity | None) -> bool:
        """Whether this identity is the one that serves."""
        return self.serving and identity == self.identity

    @property
    def identity(self) -> Identity:
        """The present one."""
        return Identity(env=self.env, epoch=self.epoch, activation=self.activation)

    @property
    def moment(self) -> str:
        """The published generation."""
        return f"{self.env}@{self.generation}"

    def changed(self) -> None:
        """Tell those who watch."""
        for watcher in self.watchers:
            watcher.append(copied(self.content))


def copied(content: Content) -> Content:
    """A copy; the values are immutable."""
    return {store: dict(inside) for store, inside in content.items()}
