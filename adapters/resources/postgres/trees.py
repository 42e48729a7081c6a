"""Copying a whole data directory whose server has ended: with shared extents where the file system can.

::

    <layer>/
      data/      the data directory of a cluster with one database of an environment
      secret     the superuser's password, the same in all copies
      mark       of a version: the write mark of the database, which a copy's server counts on from
      run/, log  of a branch whose server runs
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from statefork.adapters.resources.ledger import remove_tree
from statefork.adapters.resources.postgres.configuration import set_up_base
from statefork.adapters.resources.postgres.leftovers import is_shut_down
from statefork.adapters.resources.reflink import Pulse, copy_bytes, shared_bytes
from statefork.adapters.resources.stored import BLOCK_BYTES
from statefork.engine.ports import Usage

DATA, SECRET, MARK = "data", "secret", "mark"


def copy_cluster(source: Path, target: Path, *, reflink: bool, pulse: Pulse) -> None:
    """Fill an empty directory with a copy of a layer's cluster. Raises OSError."""
    assert is_shut_down(source / DATA), "a cluster that runs, or crashed, is never copied"
    copy = _Copy(reflink=reflink, pulse=pulse)
    copy.file(str(source / SECRET), str(target / SECRET), (source / SECRET).lstat())
    copy.directory(str(source / DATA), str(target / DATA))
    set_up_base(target / DATA)
    copy.run()


class _Copy:
    """Of some hundred files: paths are text here, as Path objects would cost more than the kernel does."""

    def __init__(self, *, reflink: bool, pulse: Pulse) -> None:
        self._reflink = reflink
        self._pulse = pulse
        self._as_root = os.geteuid() == 0
        self._pending: list[tuple[str, str]] = []

    def run(self) -> None:
        """Until everything below the directories is there."""
        while self._pending:
            self._pulse()
            old, new = self._pending.pop()
            with os.scandir(old) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        self.directory(entry.path, f"{new}/{entry.name}")
                    elif stat.S_ISREG(status.st_mode):
                        self.file(entry.path, f"{new}/{entry.name}", status)
                    else:  # a table space: only the superuser, which is us, could have made one
                        raise OSError(errno.EINVAL, "neither file nor directory", entry.path)

    def directory(self, old: str, new: str) -> None:
        """Make it; its content waits for ``run``."""
        Path(new).mkdir(mode=0o700)
        if self._as_root:
            status = Path(old).lstat()
            os.chown(new, status.st_uid, status.st_gid)
        self._pending.append((old, new))

    def file(self, old: str, new: str, status: os.stat_result) -> None:
        """Copy it, with its owner."""
        source = os.open(old, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            mode = stat.S_IMODE(status.st_mode)
            target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            try:
                if self._as_root:
                    os.fchown(target, status.st_uid, status.st_gid)
                if status.st_size:
                    copy_bytes(source, target, reflink=self._reflink, pulse=self._pulse)
            finally:
                os.close(target)
        finally:
            os.close(source)


def clear(place: Path) -> None:
    """Remove what a server had beside its data."""
    for name in ("run", "log"):
        remove_tree(place / name)
    for path in place.glob("log.*"):
        path.unlink(missing_ok=True)


def usage(place: Path) -> Usage:
    """Bytes on disk that a layer has alone and that it shares."""
    allocated = shared = 0
    for path in place.rglob("*"):
        try:
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                allocated += status.st_blocks * BLOCK_BYTES
                shared += shared_bytes(path)
        except FileNotFoundError:  # its server removed it just now
            continue
    return Usage(private_bytes=max(0, allocated - shared), shared_bytes=shared)
