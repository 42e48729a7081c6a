"""PostgreSQL behind the resource port (see engine.ports.Resource)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack

import msgspec

from statefork.adapters.resources.common import failures_told, in_thread, pulse
from statefork.adapters.resources.postgres.backend import Server
from statefork.adapters.resources.postgres.backends import Databases
from statefork.adapters.resources.postgres.base import Source, fingerprint, live, source_of
from statefork.adapters.resources.postgres.carrying import CarriedDatabases
from statefork.adapters.resources.postgres.choice import Choice
from statefork.adapters.resources.postgres.connecting import address_of, connect, reach
from statefork.adapters.resources.postgres.content import digest
from statefork.adapters.resources.postgres.cut import Closed
from statefork.adapters.resources.postgres.databases import DatabaseLedger
from statefork.adapters.resources.postgres.diffing import changes
from statefork.adapters.resources.postgres.options import Options
from statefork.adapters.resources.records import BranchRecord, SealedRecord
from statefork.adapters.resources.reflink import no_pulse
from statefork.engine.errors import ContractError, NotReady, ResourceFailed, ResourceUnreachable
from statefork.engine.masks import Column
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Handle, Identity, Sealed

ADAPTER = "postgres"


class PostgresResource(CarriedDatabases):
    """One database of one contract, on a server that all its environments share, or with one for each of them."""

    adapter = ADAPTER

    def __init__(self, name: str, options: Options, services: Services, server: Server) -> None:
        self._records = DatabaseLedger(services.state, name, ADAPTER, services.journal)
        super().__init__(name, self._records, services.base_dir / options.base)
        self.options = options
        self._choice = Choice(name, options, services, server, self._records)
        self._lock = threading.Lock()
        self._secrets: dict[str, str] = {}  # by branch
        self._bound: dict[str, Identity] = {}
        self._untouched: set[str] = set()  # branches that nobody could have entered yet
        self._closed: dict[str, Closed] = {}  # by branch, while a cut is made

    @property
    def backend(self) -> Databases:
        """Where the databases are; known since ``start``."""
        return self._choice.backend

    def strategy(self) -> Strategy:
        """Clones where the server's directory shares extents, else copies; one server, or one for each environment.

        Before the start it is seen, too, whether a live database lets us in.
        """
        if not self._choice.started:
            try:
                self._try_live()
            except (ContractError, ResourceUnreachable, ResourceFailed) as error:
                return Strategy(name="none", reason=error.message, faster=error.hint)
        return self._choice.strategy()

    def _try_live(self) -> None:
        dsn = self.options.live_dsn(self.name)
        if dsn:
            option = "live" if self.options.live else "live_variable"
            reach(self.name, address_of(self.name, option, dsn), option).close()

    async def start(self) -> None:
        """Start or reach the server, and remove what a killed engine left there. Idempotent."""
        await in_thread(self._choice.start)

    async def stop(self) -> None:
        """Remove what was made in advance; stop the server if it is ours. Idempotent."""
        await in_thread(self._choice.stop)
        await in_thread(self._sums.stop)

    def process_ids(self) -> tuple[int, ...]:
        """The server's processes (see engine.ports.Resident), if it is ours."""
        return self._choice.process_ids()

    # -- the base ---------------------------------------------------------------------------------------------

    async def provision(self) -> Sealed:
        """Import the base, once. Raises ContractError when it is none, or can't be imported."""
        await self.start()
        return await in_thread(self._provision)

    def _provision(self) -> Sealed:
        source = self._source()
        seen = self._seen(source)
        record = self._records.by_fingerprint(seen)
        if record is None:
            content = seen if source.path is None else fingerprint(source, pulse)
            version = self._records.base_version(hashlib.sha256(content.encode()).hexdigest())
            record = self._records.find_sealed(version)
            if record is None:
                self._try_live()
                record = self._record(version, self.backend.import_base(source, pulse))
            record = msgspec.structs.replace(record, fingerprint=seen)
            self._records.put_sealed(record)
        self.backend.pool_of(record.layers[0])
        return record.handle

    def _source(self) -> Source:
        dsn = self.options.live_dsn(self.name)
        return live(dsn) if dsn else source_of(self._base)

    def _seen(self, source: Source) -> str:
        """What tells, without reading it, that a base is the one that was imported. A live database is copied once."""
        if source.path is None:
            return f"live {hashlib.sha256(source.dsn.encode()).hexdigest()}"
        files = sorted(source.path.rglob("*")) if source.path.is_dir() else [source.path]
        seen = []
        for path in files:
            status = path.stat()
            seen.append([str(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
        return hashlib.sha256(msgspec.json.encode(seen)).hexdigest()

    def _record(self, version: str, database: str) -> SealedRecord:
        handle = Sealed(
            journal=self._records.journal,
            resource=self.name,
            adapter=ADAPTER,
            version=version,
            data={"database": database},
        )
        return SealedRecord(handle=handle, layers=(database,))

    # -- branches ---------------------------------------------------------------------------------------------

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """A database of its own, from the pool or copied now."""
        with failures_told(self.name, "making a branch"):
            return await in_thread(self._branch, sealed, owner)

    def _branch(self, sealed: Sealed, owner: Owner) -> Branch:
        layers = self._records.sealed(sealed).layers
        with self._records.pinned(layers):
            opened = self.backend.opened(layers[0])
            handle = Branch(
                journal=sealed.journal,
                resource=self.name,
                adapter=ADAPTER,
                id=self._records.new_id(f"{owner.env}-e{owner.epoch}"),
                env=owner.env,
                epoch=owner.epoch,
                base=sealed.version,
                data={"database": opened.database},
            )
            try:
                self._records.put_branch(
                    BranchRecord(handle=handle, over=sealed, layers=layers, upper=opened.database, mark=opened.mark)
                )
            except BaseException:
                self._drop_branch(handle.id)
                raise
        with self._lock:
            if opened.secret:
                self._secrets[handle.id] = opened.secret
            self._untouched.add(handle.id)
        return handle

    def _database(self, branch: Branch) -> str:
        return self._records.branch(branch).upper

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """The address is what a client of PostgreSQL asks for; the secret opens this branch alone."""
        return await in_thread(self._bind, branch, identity)

    def _bind(self, branch: Branch, identity: Identity) -> Binding:
        database = self._database(branch)
        with self._lock:
            secret = self._secrets.get(branch.id)
            self._untouched.discard(branch.id)
        if secret is None:  # none was made yet, or it was opened by an earlier engine, or unbound before
            secret = self.backend.new_secret(database)
            with self._lock:
                self._secrets[branch.id] = secret
        with self._lock:
            self._bound[branch.id] = identity
        return Binding(
            journal=branch.journal,
            resource=self.name,
            adapter=ADAPTER,
            branch=branch.id,
            identity=identity,
            address={**self.backend.address(database), "password": secret},
        )

    async def probe(self, binding: Binding) -> None:
        """Connect and ask as the application does. Raises NotReady, ResourceFailed for a limit."""
        await in_thread(self._probe, binding)

    def _probe(self, binding: Binding) -> None:
        if self._records.find_branch(binding.branch) is None:
            raise NotReady(f"{self.name}: branch {binding.branch!r} was discarded", resource=self.name)
        names = {"name": "dbname", "user": "user", "password": "password", "host": "host", "port": "port"}
        try:
            connection = connect(self.name, {names[key]: str(value) for key, value in binding.address.items()})
        except ResourceFailed as error:
            if error.facts.get("limit"):
                raise
            raise NotReady(
                f"{self.name}: the database of {binding.identity} can't be opened: {error.message}",
                hint=error.hint,
                resource=self.name,
            ) from error
        connection.close()

    async def unbind(self, binding: Binding) -> None:
        """End the sessions and join them; the secret opens nothing any more."""
        await in_thread(self._unbind, binding)

    def _unbind(self, binding: Binding) -> None:
        with self._lock:
            if self._bound.get(binding.branch, binding.identity) != binding.identity:
                return  # a later activation has taken over
            self._bound.pop(binding.branch, None)
            self._secrets.pop(binding.branch, None)
        record = self._records.find_branch(binding.branch)
        if record is not None:
            self.backend.lock_out(record.upper)

    # -- the cut ----------------------------------------------------------------------------------------------

    async def quiesce(self, branch: Branch) -> None:
        """End idle sessions and let no new ones in. Raises ResourceBusy, naming who holds the database."""
        await in_thread(self._quiesce, branch)

    def _quiesce(self, branch: Branch) -> None:
        database = self._database(branch)
        with self._lock:
            closed = self._closed.get(branch.id)
            if closed is None:
                closed = self._closed[branch.id] = self.backend.closed(database)
        try:
            closed.close(branch.env)
        except BaseException:
            self._thaw(branch)
            raise

    def expect_fork(self, branch: Branch) -> None:
        """Copy it twice at once when it is sealed (see engine.ports.Foresighted)."""
        with self._lock:
            closed = self._closed.get(branch.id)
        if closed is not None:
            closed.to_fork = True

    async def thaw(self, branch: Branch) -> None:
        """Let applications in again: same address, same secret. Idempotent."""
        await in_thread(self._thaw, branch)

    def _thaw(self, branch: Branch) -> None:
        with self._lock:
            closed = self._closed.get(branch.id)
        if closed is None:
            return
        if self._records.find_branch(branch.id) is not None:
            closed.open()
        self._forget_closed(branch.id)

    def _forget_closed(self, branch: str) -> None:
        with self._lock:
            closed = self._closed.pop(branch, None)
        if closed is not None:
            closed.leave()

    async def write_mark(self, branch: Branch) -> str:
        """What the server counted in this database."""
        return await in_thread(self._mark, branch)

    def _mark(self, branch: Branch) -> str:
        record = self._records.branch(branch)
        with self._lock:
            closed = self._closed.get(branch.id)
            if branch.id in self._untouched:  # its secret was given to nobody
                return record.mark
        return closed.mark() if closed is not None else self.backend.mark(record.upper)

    async def seal(self, branch: Branch) -> Sealed:
        """A copy that nobody can connect to. Raises ResourceBusy."""
        with failures_told(self.name, "sealing"):
            return await in_thread(self._seal, branch)

    def _seal(self, branch: Branch) -> Sealed:
        record = self._records.branch(branch)
        with self._lock:
            closed = self._closed.get(branch.id)
        if closed is None:  # a seal by itself, out of a continuing snapshot
            self._quiesce(branch)
            try:
                return self._seal(branch)
            finally:
                self._thaw(branch)
        now = closed.seen or closed.mark()  # applications are kept out since it was seen
        if now == record.mark:
            return self._records.kept(record)
        with self.backend.copied(record.upper, closed, now) as database:
            sealed = self._record(f"{branch.env}-e{branch.epoch}-{database[-12:]}", database)
            # First the branch: should recording the version fail, the next seal records it (see ``Ledger.kept``).
            self._records.put_branch(msgspec.structs.replace(record, over=sealed.handle, layers=(database,), mark=now))
            self._records.put_sealed(sealed)
        self._records.collect(record.layers)  # a version that was discarded, which only this branch still named
        return sealed.handle

    # -- the end, and looking ---------------------------------------------------------------------------------

    def _drop_branch(self, branch: str) -> None:
        record = self._records.find_branch(branch)
        with self._lock:
            self._secrets.pop(branch, None)
            self._untouched.discard(branch)
            unbound = self._bound.pop(branch, None) is None
        self._forget_closed(branch)
        if record is not None and not unbound:
            self.backend.lock_out(record.upper)
        self._records.drop_branch(branch)

    async def inventory(self) -> AsyncIterator[Handle]:
        """Every version and branch of this journal; what killed backends left on our own server goes."""
        await in_thread(self.backend.tidy)
        async for handle in super().inventory():
            yield handle

    def _content_digest(self, record: SealedRecord) -> str:
        """Of schema, rows, sequences and large objects, however they lie on disk."""
        with self.backend.reading(record.layers[0]) as connection:
            return digest(connection, pulse)

    async def digest_without(self, sealed: Sealed, columns: tuple[Column, ...]) -> str:
        """Of the same without what stands in some columns (see engine.masks.Columned)."""
        return await in_thread(self._digest_without, self._records.sealed(sealed), frozenset(columns))

    def _digest_without(self, record: SealedRecord, columns: frozenset[Column]) -> str:
        with failures_told(self.name, "reading a version"), self.backend.reading(record.layers[0]) as connection:
            return digest(connection, pulse, columns)

    def _changes(self, before: SealedRecord, after: SealedRecord) -> Generator[Change, None, None]:
        """Rows by key, objects of the schema, sequences, large objects."""
        with ExitStack() as stack:
            old, new = (stack.enter_context(self.backend.reading(record.layers[0])) for record in (before, after))
            yield from changes(old, new, no_pulse)

    def _usage(self, handle: Sealed | Branch) -> Usage:
        """As the server's directory shows it; where it can't be seen, all bytes count as private."""
        if isinstance(handle, Branch):
            return self.backend.usage(self._database(handle))
        return self.backend.usage(self._records.sealed(handle).layers[0])
