"""An actor for the crash tests: it writes one witness into a row and into a file, as an agent's click would."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import msgspec

from statefork.engine.errors import InvalidAction
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Handle, Identity, Json, Observation, Sealed

VERSION = "hand"
FOLDER = "witnesses"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing to choose."""


class Hand:
    """Holds nothing itself. ``depends_on`` is a database and a file tree."""

    adapter = "hand"

    def __init__(self, name: str, services: Services) -> None:
        self.name = name
        self._services = services
        self._reach: dict[str, tuple[Path, Path]] = {}
        self._made = 0

    def strategy(self) -> Strategy:
        return Strategy(name="nothing", reason="there is nothing to keep")

    async def start(self) -> None:
        """Nothing runs."""

    async def stop(self) -> None:
        self._reach.clear()

    async def provision(self) -> Sealed:
        return Sealed(journal=self._services.journal, resource=self.name, adapter=self.adapter, version=VERSION)

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        self._made += 1
        return Branch(
            journal=sealed.journal,
            resource=self.name,
            adapter=self.adapter,
            id=f"{owner.env}-e{owner.epoch}-{self._made}",
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
        )

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        db, media = (Path(str(needs.bindings[name].address["path"])) for name in ("db", "media"))
        self._reach[branch.id] = db, media
        return Binding(
            journal=branch.journal, resource=self.name, adapter=self.adapter, branch=branch.id, identity=identity
        )

    async def probe(self, binding: Binding) -> None:
        assert binding.branch in self._reach

    async def quiesce(self, branch: Branch) -> None:
        """Nothing goes on in the background."""

    async def thaw(self, branch: Branch) -> None:
        """Nothing was stopped."""

    async def write_mark(self, branch: Branch) -> str:
        return ""

    async def seal(self, branch: Branch) -> Sealed:
        return await self.provision()

    async def unbind(self, binding: Binding) -> None:
        self._reach.pop(binding.branch, None)

    async def discard(self, handle: Handle) -> None:
        """There is nothing to remove."""

    async def inventory(self) -> AsyncIterator[Handle]:
        for _ in ():
            yield _

    async def digest(self, sealed: Sealed) -> str:
        return hashlib.sha256(b"").hexdigest()

    async def diff(self, before: Sealed, after: Sealed) -> AsyncIterator[Change]:
        for _ in ():
            yield _

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """There is nothing to carry."""

    async def unpack(self, directory: Path) -> Sealed:
        return await self.provision()

    async def usage(self, handle: Handle) -> Usage:
        return Usage(private_bytes=0)

    def check(self, action: Mapping[str, Json]) -> None:
        if action.get("type") != "write":
            raise InvalidAction("a hand only writes", field="type")

    async def act(self, binding: Binding, action: Mapping[str, Json]) -> Observation:
        db, media = self._reach[binding.branch]
        witness = str(action["witness"])
        with closing(sqlite3.connect(db)) as connection, connection:
            connection.execute("INSERT INTO witnesses VALUES (?)", (witness,))
        (media / FOLDER / witness).write_text(witness)
        return await self.observe(binding)

    async def observe(self, binding: Binding) -> Observation:
        seen = "\n".join(sorted(rows_in(self._reach[binding.branch][0]))).encode()
        digest = self._services.blobs.put(seen)
        return Observation(digest=digest, snapshot=digest)

    def raw(self, binding: Binding) -> AbstractAsyncContextManager[object]:
        raise InvalidAction("a hand lends nothing")


def make(name: str, options: Options, services: Services) -> Hand:
    """The resource of one contract entry."""
    return Hand(name, services)


def rows_in(path: Path, mode: str = "rw") -> frozenset[str]:
    """The witnesses in a database file, read with the standard library."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True)) as connection:
        return frozenset(witness for (witness,) in connection.execute("SELECT witness FROM witnesses"))


def files_in(tree: Path) -> frozenset[str]:
    """The witnesses in a file tree; a file that does not say what it is called is no witness of anything."""
    found = frozenset(path.name for path in (tree / FOLDER).iterdir())
    assert all((tree / FOLDER / name).read_text() == name for name in found), found
    return found
