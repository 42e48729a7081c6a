"""Namespaces as files: written from the server, restored to it, read for digests and diffs.

A file holds frames (a length of four bytes, then MessagePack), the first of which tells the moment of the seal; every
other one is a key: its name without the prefix, when it expires, and its value as the server dumps it. Keys are
in the order of their names, so the same content in the same moment gives the same file.

Dumps depend on how a value came about, so contents are compared as the server shows them to a client: the keys are
restored, a few at a time, into a namespace that nobody else knows.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from statefork.adapters.resources.reflink import Pulse
from statefork.adapters.resources.valkey.asking import BATCH, Admin, batches
from statefork.engine.errors import ResourceFailed

FILE_NAME = "keys"
_FORMAT = 1
_LENGTH = struct.Struct(">I")
_NEVER = -1


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The first frame."""

    format: int
    sealed_at_ms: int  # by the server's clock, Unix time


class Key(msgspec.Struct, frozen=True, array_like=True):
    """One key."""

    name: bytes
    expires_at_ms: int  # Unix time; -1: never
    dump: bytes


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One key as a client sees it."""

    name: bytes
    kind: str
    value: Any
    expires: bool

    def digest(self) -> bytes:
        """Of all of it."""
        return hashlib.sha256(msgspec.msgpack.encode((self.name, self.kind, self.value, self.expires))).digest()


def _frame(file: BinaryIO, value: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(value)
    file.write(_LENGTH.pack(len(data)))
    file.write(data)


def write(path: Path, admin: Admin | None, prefix: str, names: set[bytes], pulse: Pulse) -> list[bytes]:
    """Write what a namespace holds; the names of the keys that are there. Without a server: an empty namespace."""
    start = prefix.encode()
    found: list[bytes] = []
    with path.open("wb") as file:
        _frame(file, Head(_FORMAT, _now_ms(admin)))
        for batch in batches(sorted(names)) if admin is not None else ():
            assert admin is not None
            pulse()
            commands = [(word, start + name) for name in batch for word in ("DUMP", "PEXPIRETIME")]
            answers = iter(admin.ask_all(commands))
            for name in batch:
                dump, expires_at_ms = next(answers), next(answers)
                if dump is not None:
                    _frame(file, Key(name, int(expires_at_ms), dump))
                    found.append(name)
    return found


def _now_ms(admin: Admin | None) -> int:
    if admin is None:
        return time.time_ns() // 1_000_000
    seconds, microseconds = admin.ask("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def _read(path: Path) -> tuple[Head, Iterator[Key]]:
    def frames() -> Iterator[bytes]:
        with path.open("rb") as file:
            while length := file.read(_LENGTH.size):
                data = file.read(_LENGTH.unpack(length)[0])
                yield data

    found = frames()
    head = msgspec.msgpack.decode(next(found), type=Head)
    if head.format != _FORMAT:
        raise ResourceFailed(f"a sealed namespace is of format {head.format}, which this statefork does not know")
    decoder = msgspec.msgpack.Decoder(Key)
    return head, (decoder.decode(data) for data in found)


def restore(path: Path, admin: Admin, prefix: str, *, absolute: bool, pulse: Pulse) -> None:
    """Put a file's keys into an empty namespace. Their times go on from where they were, or went on meanwhile."""
    head, keys = _read(path)
    now_ms = _now_ms(admin)
    start = prefix.encode()
    while batch := list(islice(keys, BATCH)):
        pulse()
        commands: list[tuple[str | bytes | int, ...]] = []
        for key in batch:
            if key.expires_at_ms == _NEVER:
                commands.append(("RESTORE", start + key.name, 0, key.dump))
            elif not absolute:
                left_ms = max(1, key.expires_at_ms - head.sealed_at_ms)
                commands.append(("RESTORE", start + key.name, now_ms + left_ms, key.dump, "ABSTTL"))
            elif key.expires_at_ms > now_ms:
                commands.append(("RESTORE", start + key.name, key.expires_at_ms, key.dump, "ABSTTL"))
        admin.ask_all(commands)


def items(path: Path, admin: Admin, prefix: str, pulse: Pulse) -> Iterator[Item]:
    """A file's keys in the order of their names, read through a namespace that is empty before and afterwards."""
    _, keys = _read(path)
    start = prefix.encode()
    while batch := list(islice(keys, BATCH)):
        pulse()
        names = [start + key.name for key in batch]
        try:
            admin.ask_all(("RESTORE", start + key.name, 0, key.dump) for key in batch)
            kinds = [kind.decode() for kind in admin.ask_all(("TYPE", name) for name in names)]
            values = admin.ask_all(_reading(kind, name) for kind, name in zip(kinds, names, strict=True))
            groups = iter(
                admin.ask_all(("XINFO", "GROUPS", n) for k, n in zip(kinds, names, strict=True) if k == "stream")
            )
            found = [
                Item(
                    name=key.name,
                    kind=kind,
                    value=_plain(kind, value, next(groups) if kind == "stream" else None),
                    expires=key.expires_at_ms != _NEVER,
                )
                for key, kind, value in zip(batch, kinds, values, strict=True)
            ]
        finally:
            admin.ask("UNLINK", *names)
        yield from found


def _reading(kind: str, name: bytes) -> tuple[str | bytes | int, ...]:
    match kind:
        case "string":
            return ("GET", name)
        case "hash":
            return ("HGETALL", name)
        case "list":
            return ("LRANGE", name, 0, -1)
        case "set":
            return ("SMEMBERS", name)
        case "zset":
            return ("ZRANGE", name, 0, -1, "WITHSCORES")
        case "stream":
            return ("XRANGE", name, "-", "+")
        case _:  # of a module
            return ("DUMP", name)


def _plain(kind: str, value: Any, groups: Any) -> Any:
    """Without an order that means nothing."""
    match kind:
        case "hash":
            return sorted(value.items()) if isinstance(value, dict) else sorted(zip(*[iter(value)] * 2, strict=True))
        case "set":
            return sorted(value)
        case "zset":
            return sorted((bytes(member), repr(score)) for member, score in _pairs(value))
        case "stream":
            return [repr(value), repr(groups)]
        case _:
            return value


def _pairs(value: list[Any]) -> Iterator[tuple[bytes, Any]]:
    if value and isinstance(value[0], tuple | list):
        yield from ((pair[0], pair[1]) for pair in value)
    else:
        yield from zip(*[iter(value)] * 2, strict=True)
