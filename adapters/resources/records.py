"""What a ledger holds in memory: its records, those of sealed versions as bytes, and how often each layer is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from statefork.journal.values import Branch, Sealed


class SealedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed version. ``fingerprint`` finds a provisioned base again without reading it."""

    handle: Sealed
    layers: tuple[str, ...]
    fingerprint: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """The version."""
        return self.handle.version

    @property
    def named(self) -> tuple[str, ...]:
        """The layers that it keeps."""
        return self.layers


class BranchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A branch over ``over``. ``layers`` are below it; ``upper`` is the layer that it writes, where it has one."""

    handle: Branch
    over: Sealed  # what it equals at ``mark``: the version it was opened over or last sealed as
    layers: tuple[str, ...]
    upper: str = ""
    mark: str = ""

    @property
    def name(self) -> str:
        """The branch's id."""
        return self.handle.id

    @property
    def named(self) -> tuple[str, ...]:
        """The layers that it keeps."""
        return (*self.layers, self.upper) if self.upper else self.layers


R = TypeVar("R", SealedRecord, BranchRecord)


class Records(Generic[R]):
    """The records of one kind by name. A hundred thousand of them cost some hundred bytes each."""

    def __init__(self, kind: type[R], uses: Counter[str]) -> None:
        self._uses = uses  # of layers, by records of both kinds
        self._packed: dict[str, bytes] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(kind)

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def __iter__(self) -> Iterator[R]:
        """All of this moment, each unpacked only when its turn comes."""
        return map(self._decoder.decode, list(self._packed.values()))

    def get(self, name: str) -> R | None:
        """One of them."""
        packed = self._packed.get(name)
        return None if packed is None else self._decoder.decode(packed)

    def put(self, record: R) -> None:
        """Take one in, in place of an older one of that name."""
        before = self.get(record.name)
        self._packed[record.name] = self._encoder.encode(record)
        self._uses.update(record.named)
        if before is not None:
            self._release(before.named)

    def pop(self, name: str) -> R | None:
        """Forget one."""
        before = self.get(name)
        if before is not None:
            del self._packed[name]
            self._release(before.named)
        return before

    def _release(self, layers: Iterable[str]) -> None:
        for layer in layers:
            self._uses[layer] -= 1
            if not self._uses[layer]:
                del self._uses[layer]
