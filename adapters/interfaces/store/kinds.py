"""The file systems that a store can be: how each is made, recognised, mounted and grown."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from statefork.adapters.interfaces.store.errors import StoreUnavailable
from statefork.adapters.interfaces.store.place import KindName
from statefork.adapters.interfaces.store.sizes import MIB

_SYSTEM_PATH = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin"  # sudo and services often leave the first ones out
_XFS_HEAD = struct.Struct(">4sIQ16x16s")
_BTRFS_PLACE = 0x10000
_BTRFS_HEAD = struct.Struct("<32x16s16x8s40xQ")


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One file system. ``package`` is called the same in Debian, Ubuntu and Fedora."""

    name: KindName
    package: str
    make: Callable[[Path, str], list[str]]
    grow: Callable[[Path], list[str]]
    options: str
    bytes_min: int


KINDS: dict[KindName, Kind] = {
    "xfs": Kind(
        name="xfs",
        package="xfsprogs",
        # Sectors of 4 KiB, so that the loop device can read and write past the page cache on disks of either kind. No
        # reverse mappings (the default since xfsprogs 6.5): each clone of a file would write them, too.
        make=lambda image, name: [
            "mkfs.xfs",
            "-q",
            "-K",
            "-s",
            "size=4096",
            "-m",
            f"reflink=1,rmapbt=0,uuid={name}",
            str(image),
        ],
        grow=lambda mounted: ["xfs_growfs", "-d", str(mounted)],
        options="nouuid,nodiscard",  # a copy of a state directory may be in use beside it
        bytes_min=320 * MIB,
    ),
    "btrfs": Kind(
        name="btrfs",
        package="btrfs-progs",
        make=lambda image, name: ["mkfs.btrfs", "-q", "-K", "-m", "single", "-U", name, str(image)],
        grow=lambda mounted: ["btrfs", "filesystem", "resize", "max", str(mounted)],
        options="nodiscard",
        bytes_min=256 * MIB,
    ),
}


class Superblock(NamedTuple):
    """What a file says that it is."""

    kind: KindName
    uuid: str
    bytes: int


def superblock(image: Path) -> Superblock | None:
    """The file system in a file; None where it is none of ours. Raises OSError."""
    with image.open("rb") as file:
        head = file.read(_XFS_HEAD.size)
        if len(head) == _XFS_HEAD.size:
            magic, block_bytes, blocks, name = _XFS_HEAD.unpack(head)
            if magic == b"XFSB":
                return Superblock("xfs", str(uuid.UUID(bytes=name)), block_bytes * blocks)
        file.seek(_BTRFS_PLACE)
        head = file.read(_BTRFS_HEAD.size)
        if len(head) == _BTRFS_HEAD.size:
            name, magic, total = _BTRFS_HEAD.unpack(head)
            if magic == b"_BHRfS_M":
                return Superblock("btrfs", str(uuid.UUID(bytes=name)), total)
    return None


def tool(kind: Kind, command: list[str]) -> list[str]:
    """The command with its program's path. Raises StoreUnavailable, naming the package, where it is not installed."""
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"
    found = shutil.which(command[0], path=path)
    if found is None:
        raise StoreUnavailable(f"{command[0]} is not installed", hint=install(kind), program=command[0])
    return [found, *command[1:]]


def install(kind: Kind) -> str:
    """What to type for a kind's programs."""
    return f"apt-get install {kind.package} (Debian, Ubuntu) or dnf install {kind.package} (Fedora)"


def run(kind: Kind, command: list[str]) -> None:
    """Run one of a kind's programs. Raises StoreUnavailable with what it said."""
    done = subprocess.run(tool(kind, command), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise StoreUnavailable(f"{command[0]} failed: {said or f'status {done.returncode}'}", program=command[0])
