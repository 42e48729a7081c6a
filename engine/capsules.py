"""The capsules of a journal's environments, kept small: those at rest are packed, and unpacked when they are touched.

An environment at rest (parked, retired) costs its name and some hundred bytes. A few that were touched last stay
unpacked, so that what is in use is never unpacked twice in a row. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from statefork.journal.values import Component

if TYPE_CHECKING:
    from statefork.engine.capsule import Capsule

WARM = 256
"""How many environments at rest an engine keeps unpacked."""

_COMPRESSED_BYTES_MIN = 1024  # long histories shrink to a fraction; a short one would not repay the time
_LEVEL = 1
_PLAIN, _COMPRESSED = b"\0", b"\1"


class Packing:
    """How capsules become bytes, and come back equal. ``bases``: every base ever provisioned; it only grows at its end.

    A manifest that is one of them, as in every environment that was never written, is left out: its place is noted.
    """

    def __init__(self, kind: type[Capsule], bases: Sequence[dict[str, Component]]) -> None:
        self._bases = bases
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(tuple[kind, dict[int, int]])  # type: ignore[valid-type]  # known at run time only

    def pack(self, capsule: Capsule) -> bytes:
        """The bytes of a capsule."""
        generations = capsule.generations
        based = {
            number: place
            for number, one in generations.items()
            for place, base in enumerate(self._bases)
            if one.manifest == base
        }
        if based:
            bare = {number: replace(generations[number], manifest={}) for number in based}
            capsule = replace(capsule, generations={**generations, **bare})
        data = self._encoder.encode((capsule, based))
        if len(data) < _COMPRESSED_BYTES_MIN:
            return _PLAIN + data
        return _COMPRESSED + zlib.compress(data, _LEVEL)

    def unpack(self, data: bytes) -> Capsule:
        """The capsule."""
        body = memoryview(data)[1:]
        capsule: Capsule
        capsule, based = self._decoder.decode(zlib.decompress(body) if data[:1] == _COMPRESSED else body)
        if based:
            whole = dict(capsule.generations)
            for number, place in based.items():
                whole[number] = replace(whole[number], manifest=self._bases[place])
            capsule = replace(capsule, generations=whole)
        return capsule


class Capsules(Mapping[str, "Capsule"]):
    """Environment -> capsule, in the order in which they were founded.

    ``warm``: how many at rest stay unpacked; None: all do.
    """

    def __init__(self, packing: Packing, warm: int | None) -> None:
        self._packing = packing
        self._limit = warm
        self._all: dict[str, Capsule | bytes] = {}
        self._awake: dict[str, None] = {}
        self._warm: dict[str, bytes | None] = {}  # unpacked at rest, touched last stands last; its bytes if still true

    def __getitem__(self, env: str) -> Capsule:
        found = self._all[env]
        if isinstance(found, bytes):
            capsule = self._all[env] = self._packing.unpack(found)
            self._warm[env] = found
            self._cool()
            return capsule
        if env in self._warm:
            self._warm[env] = self._warm.pop(env)
        return found

    def __contains__(self, env: object) -> bool:
        return env in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def items(self) -> ItemsView[str, Capsule]:
        """All of them, each unpacked only while it is looked at."""
        return _Items(self)

    def values(self) -> ValuesView[Capsule]:
        """All of them, each unpacked only while it is looked at."""
        return _Values(self)

    def look(self, env: str) -> Capsule:
        """The same as ``[env]``, for those who go through many: it does not count as a touch."""
        found = self._all[env]
        return self._packing.unpack(found) if isinstance(found, bytes) else found

    def __setitem__(self, env: str, capsule: Capsule) -> None:
        self._all[env] = capsule
        self._warm.pop(env, None)
        if not capsule.at_rest:
            self._awake[env] = None
            return
        self._awake.pop(env, None)
        if self._limit is not None:
            self._warm[env] = None
            self._cool()

    def pop(self, env: str) -> None:
        """Forget one, if it is there."""
        for place in (self._all, self._awake, self._warm):
            place.pop(env, None)

    def resize(self, warm: int) -> None:
        """Keep so many at rest unpacked from now on."""
        self._limit = warm
        self._cool()

    def _cool(self) -> None:
        while self._limit is not None and len(self._warm) > self._limit:
            env = next(iter(self._warm))
            packed = self._warm.pop(env)
            self._all[env] = self._packing.pack(self.look(env)) if packed is None else packed

    @property
    def awake(self) -> tuple[str, ...]:
        """Who is not at rest."""
        return tuple(self._awake)

    def packed(self) -> dict[str, bytes]:
        """All of them as bytes, at this moment."""
        packing = self._packing
        return {env: one if isinstance(one, bytes) else packing.pack(one) for env, one in self._all.items()}

    def fill(self, packed: Mapping[str, bytes], awake: tuple[str, ...]) -> None:
        """Begin with these, of which those in ``awake`` are not at rest."""
        self._all.update(packed)
        for env in awake:
            self[env] = self.look(env)


class _Items(ItemsView[str, "Capsule"]):
    _mapping: Capsules

    def __iter__(self) -> Iterator[tuple[str, Capsule]]:
        for env in self._mapping:
            yield env, self._mapping.look(env)


class _Values(ValuesView["Capsule"]):
    _mapping: Capsules

    def __iter__(self) -> Iterator[Capsule]:
        for env in self._mapping:
            yield self._mapping.look(env)
