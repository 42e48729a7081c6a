"""Sealed profiles on disk: one JSON file per version under the state directory, named by its digest. Blocking."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from statefork.adapters.resources.browser.state import Stored, decode, digest_of, encode
from statefork.adapters.resources.common import failures_told
from statefork.engine.errors import ResourceFailed
from statefork.journal.values import Sealed

_SUFFIX = ".json"


class ProfileFiles:
    """The versions of one resource."""

    def __init__(self, state: Path, journal: str, resource: str, adapter: str) -> None:
        self._state = state
        self._journal = journal
        self._resource = resource
        self._adapter = adapter
        self._folder = state / "resources" / resource

    def handle(self, version: str) -> Sealed:
        """The handle of a version, whether or not its file is there."""
        path = (self._folder / f"{version}{_SUFFIX}").relative_to(self._state)
        return Sealed(
            journal=self._journal,
            resource=self._resource,
            adapter=self._adapter,
            version=version,
            data={"path": str(path)},
        )

    def path(self, version: str) -> Path:
        """Where a version's file is."""
        return self._folder / f"{version}{_SUFFIX}"

    def write(self, stored: Stored) -> Sealed:
        """Put a version on disk, durably; equal content is one version and costs nothing the second time."""
        version = digest_of(stored.profile)
        target = self.path(version)
        if target.exists():
            return self.handle(version)
        partial = self._folder / f".{version}.{secrets.token_hex(4)}.partial"
        with failures_told(self._resource, "writing a sealed profile"):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with partial.open("wb") as file:
                    file.write(encode(stored))
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return self.handle(version)

    def read(self, version: str) -> Stored:
        """A version's content. Raises ResourceFailed when it is missing, damaged or not what its name says."""
        path = self.path(version)
        with failures_told(self._resource, f"reading sealed profile {version[:12]}"):
            stored = decode(path.read_bytes(), str(path))
        if digest_of(stored.profile) != version:
            raise ResourceFailed(f"browser state {version[:12]} is not what was sealed", path=str(path))
        return stored

    def remove(self, version: str) -> None:
        """Remove a version. Idempotent."""
        self.path(version).unlink(missing_ok=True)

    def versions(self) -> Iterator[str]:
        """Every version on disk; what an interrupted write left is removed on the way."""
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            if path.suffix == ".partial":
                with contextlib.suppress(OSError):
                    path.unlink()
            elif path.suffix == _SUFFIX:
                yield path.stem
