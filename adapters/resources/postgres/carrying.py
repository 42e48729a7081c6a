"""Versions carried to another journal: as the SQL that makes them again, which is read as a base is.

It is written by pg_dump, as a role that has no power, in a copy of the version; and made again at once, to see that
the content is the same, since a dump leaves out some of it (privileges, a materialized view that is behind its tables).
What comes from elsewhere is imported by a role without rights, through a psql that obeys SQL only (see base.py).
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import islice
from pathlib import Path

import anyio
from psycopg import conninfo

from statefork.adapters.resources.common import failures_told, in_thread, pulse
from statefork.adapters.resources.postgres.backends import Databases
from statefork.adapters.resources.postgres.base import Source, dump
from statefork.adapters.resources.postgres.binaries import find_programs
from statefork.adapters.resources.postgres.options import Options
from statefork.adapters.resources.postgres.reading import Connection, rows
from statefork.adapters.resources.records import SealedRecord
from statefork.adapters.resources.stored import StoredResource
from statefork.engine.errors import ContractError, ResourceFailed
from statefork.journal.values import Sealed

FILE = "database.sql"
LINE_BYTES_MAX = 1 << 30  # of a row, as PostgreSQL has it
_CHUNK_BYTES = 1 << 20
_NAMED_MAX = 3
_ROOTED = """
SELECT format('the policy %I on %s, which is for a role', p.polname, p.polrelid::regclass) FROM pg_policy p
WHERE NOT 0 = ANY (p.polroles)
UNION ALL SELECT format('a user mapping of the server %I, which may hold a password', s.srvname)
FROM pg_user_mapping u JOIN pg_foreign_server s ON s.oid = u.umserver ORDER BY 1
"""


class CarriedDatabases(StoredResource):
    """Implements :class:`statefork.engine.ports.Portable`."""

    options: Options

    @property
    @abstractmethod
    def backend(self) -> Databases:
        """Where the databases are."""

    @abstractmethod
    def _record(self, version: str, database: str) -> SealedRecord:
        """A version's, over its database."""

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """Write the SQL. Raises ResourceFailed, naming what would not be there again."""
        await in_thread(self._pack, self._ledger.sealed(sealed), directory / FILE)
        made = await self.unpack(directory)
        try:
            if await self.digest(made) != await self.digest(sealed):
                raise self._uncarried(await in_thread(self._lost, sealed, made))
        finally:
            with anyio.CancelScope(shield=True):
                await self.discard(made)

    def _pack(self, record: SealedRecord, path: Path) -> None:
        programs = find_programs(self.options.programs)
        with failures_told(self.name, "packing a version"), self.backend.reading(record.layers[0]) as connection:
            if rooted := [what for (what,) in rows(connection, _ROOTED)]:
                raise self._uncarried(rooted)
            try:
                dump(_address(connection), path, programs, pulse)
            except ContractError as error:
                said = error.message.removeprefix("the live database: ")  # it is read as one
                raise ResourceFailed(
                    f"{self.name}: packing a version failed: {said}", hint=error.hint, resource=self.name
                ) from error

    def _uncarried(self, what: list[str]) -> ResourceFailed:
        named = ", ".join(what[:_NAMED_MAX])
        return ResourceFailed(
            f"{self.name} can't be carried in a file as it is: {named}{' …' if len(what) > _NAMED_MAX else ''}",
            hint="A dump leaves out privileges and what belongs to roles, and makes materialized views anew: change "
            "that in the application, or carry the state directory",
            resource=self.name,
        )

    def _lost(self, sealed: Sealed, made: Sealed) -> list[str]:
        changes = self._changes(self._ledger.sealed(sealed), self._ledger.sealed(made))
        with failures_told(self.name, "reading a version"):
            found = [f"{change.name} would be {change.kind}" for change in islice(changes, _NAMED_MAX + 1)]
        changes.close()
        return found

    async def unpack(self, directory: Path) -> Sealed:
        """A version of its own. Raises ResourceFailed where the SQL can't be carried out."""
        return await in_thread(self._unpack, directory / FILE)

    def _unpack(self, path: Path) -> Sealed:
        with failures_told(self.name, "unpacking a version"):
            _check_lines(self.name, path)
            try:
                database = self.backend.import_base(Source("sql", path), pulse)
            except ContractError as error:
                raise ResourceFailed(
                    f"{self.name}: unpacking a version failed: {error.message}", hint=error.hint, resource=self.name
                ) from error
            return self._ledger.put_sealed(self._record(f"import-{database[-12:]}", database))


def _address(connection: Connection) -> str:
    """The connection string of another session of the same role."""
    info = connection.info
    return conninfo.make_conninfo("", **{**info.get_parameters(), "password": info.password})


def _check_lines(resource: str, path: Path) -> None:
    """No line is longer than a row can be: each is held in memory."""
    length = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            pulse()
            first, _, rest = chunk.partition(b"\n")
            if length + len(first) > LINE_BYTES_MAX:
                raise ResourceFailed(
                    f"{resource}: unpacking a version failed: a line is longer than {LINE_BYTES_MAX} bytes",
                    hint="No dump has such a line: the file was made to do harm",
                    resource=resource,
                )
            length = len(rest) - rest.rfind(b"\n") - 1 if len(first) < len(chunk) else length + len(chunk)
