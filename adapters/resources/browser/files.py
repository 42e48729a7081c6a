"""Sealed profiles on disk, one JSON file per version: ``resources/<name>/<journal>/<version>.json``. Blocking.

A version's name begins with the digest of its content and ends with something of its own: equal profiles of two
environments are two versions, so that collecting one never takes the other's file away.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from statefork.adapters.resources.browser.state import Profile, Stored, decode, digest_of, encode
from statefork.adapters.resources.common import failures_told
from statefork.engine.errors import ResourceFailed
from statefork.journal.values import Sealed

_SUFFIX = ".json"
_PACKED = "profile.json"
_DIGEST_CHARS = 32
_NONCE_BYTES = 4


class ProfileFiles:
    """The versions of one resource in one journal."""

    def __init__(self, state: Path, journal: str, resource: str, adapter: str) -> None:
        self._state = state
        self._journal = journal
        self._resource = resource
        self._adapter = adapter
        self._folder = state / "resources" / resource / journal

    def handle(self, version: str) -> Sealed:
        """The handle of a version, whether or not its file is there."""
        return Sealed(
            journal=self._journal,
            resource=self._resource,
            adapter=self._adapter,
            version=version,
            data={"path": str(self.path(version).relative_to(self._state))},
        )

    def path(self, version: str) -> Path:
        """Where a version's file is."""
        return self._folder / f"{version}{_SUFFIX}"

    def provision(self, profile: Profile) -> Sealed:
        """The version of a base: made once, the same one ever after."""
        version = digest_of(profile)[:_DIGEST_CHARS]
        if not self.path(version).exists():
            self._write(version, Stored(profile=profile))
        return self.handle(version)

    def seal(self, stored: Stored) -> Sealed:
        """A new version, durably on disk."""
        version = f"{digest_of(stored.profile)[:_DIGEST_CHARS]}-{secrets.token_hex(_NONCE_BYTES)}"
        self._write(version, stored)
        return self.handle(version)

    def _write(self, version: str, stored: Stored) -> None:
        target = self.path(version)
        partial = self._folder / f".{version}.partial"
        with failures_told(self._resource, "writing a sealed profile"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # there are cookies in profiles
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

    def read(self, version: str) -> Stored:
        """A version's content. Raises ResourceFailed when it is missing, damaged or not what its name says."""
        path = self.path(version)
        with failures_told(self._resource, f"reading sealed profile {version}"):
            stored = decode(path.read_bytes(), str(path))
        if digest_of(stored.profile)[:_DIGEST_CHARS] != version[:_DIGEST_CHARS]:
            raise ResourceFailed(f"sealed profile {version} is not what was sealed", path=str(path))
        return stored

    def pack(self, version: str, directory: Path) -> None:
        """Write a version's content into a directory."""
        data = encode(self.read(version))
        with failures_told(self._resource, f"packing sealed profile {version}"):
            (directory / _PACKED).write_bytes(data)

    def unpack(self, directory: Path) -> Sealed:
        """A new version of what ``pack`` wrote. Raises ResourceFailed."""
        with failures_told(self._resource, "unpacking a profile"):
            stored = decode((directory / _PACKED).read_bytes(), _PACKED)
        return self.seal(stored)

    def remove(self, version: str) -> None:
        """Remove a version. Idempotent."""
        with failures_told(self._resource, f"removing sealed profile {version}"):
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
