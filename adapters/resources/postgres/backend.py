"""One resource's side of a server: its names, its way of copying, its thread, from start to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from psycopg import sql

from statefork.adapters.resources.postgres.base import Source
from statefork.adapters.resources.postgres.binaries import find_programs
from statefork.adapters.resources.postgres.claim import Claim
from statefork.adapters.resources.postgres.cloning import Cloner
from statefork.adapters.resources.postgres.connecting import Address, Admin
from statefork.adapters.resources.postgres.cut import Closed
from statefork.adapters.resources.postgres.databases import DatabaseLedger
from statefork.adapters.resources.postgres.importing import import_into, make_owner
from statefork.adapters.resources.postgres.making import Making
from statefork.adapters.resources.postgres.naming import SCRATCH, VERSION, Names
from statefork.adapters.resources.postgres.options import Options
from statefork.adapters.resources.postgres.reader import as_reader
from statefork.adapters.resources.postgres.reading import Connection
from statefork.adapters.resources.postgres.recovery import remove_broken, remove_orphan_directories, sweep
from statefork.adapters.resources.postgres.relief import Relief
from statefork.adapters.resources.postgres.roles import Opened, forget_settings
from statefork.adapters.resources.postgres.sessions import end_sessions
from statefork.adapters.resources.postgres.ways import Ways, described
from statefork.adapters.resources.postgres.workshop import Workshop
from statefork.adapters.resources.reflink import Pulse, ReflinkProbe, shared_bytes
from statefork.adapters.resources.stored import BLOCK_BYTES
from statefork.engine.errors import MissingDependency, ResourceFailed, ResourceUnreachable
from statefork.engine.ports import Strategy, Usage

OLDEST = 150000
POOL_COPY_BYTES_MAX = 1 << 30  # of all branches made in advance together, where each is a whole copy
_REACHED = "SELECT datname FROM pg_database WHERE datallowconn AND has_database_privilege(%s, oid, 'CONNECT')"


class Server(Protocol):
    """Where databases are: a server of our own, or somebody else's."""

    own: bool

    @property
    def making(self) -> Making:
        """Who makes databases there now."""
        ...

    def acquire(self) -> None:
        """Run, or see that it answers."""
        ...

    def release(self) -> None:
        """Undo one ``acquire``."""
        ...

    def address(self) -> Address:
        """How the engine connects."""
        ...

    def door(self) -> dict[str, str | int]:
        """Host and port for everybody."""
        ...

    def data_directory(self) -> Path | None:
        """To look at, where that is possible."""
        ...

    def look_ahead(self) -> ReflinkProbe:
        """What is to be expected of it, before it is used.

        Raises MissingDependency, OSError; of somebody else's also ResourceUnreachable, ResourceFailed.
        """
        ...

    def process_ids(self) -> tuple[int, ...]:
        """Its processes, if they are ours."""
        ...

    def acceleration(self) -> str:
        """How copies are made faster than by PostgreSQL alone, or why they are not; empty where nobody asked."""
        ...

    def check(self) -> None:
        """Raise RuntimeDied where it was given up."""
        ...


class Backend:
    """The databases of one resource on one server (see backends.Databases)."""

    def __init__(self, resource: str, options: Options, journal: str, server: Server, records: DatabaseLedger) -> None:
        self._resource = resource
        self._options = options
        self._journal = journal
        self._records = records
        self._life = threading.Lock()
        self._reachable: list[str] = []
        self.server = server
        self.running = False
        self._claim: Claim | None = None  # on somebody else's server
        self._relief: Relief | None = None  # on our own
        self.names: Names
        self.admin: Admin
        self.ways: Ways
        self.cloner: Cloner
        self.workshop: Workshop
        records.unneeded = self._unneeded

    # -- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Reach the server; make the owner of all objects; remove what a killed engine left. Idempotent."""
        with self._life:
            if self.running:
                self.server.check()
                return
            self.server.acquire()
            self.admin = Admin(self._resource, self.server.address(), self.server.check, self.server.data_directory())
            try:
                self._connect()
            except BaseException:
                self._let_go()
                raise
            self.running = True

    def _keep_sessions(self) -> None:
        """Those that the engine has all the time; the server may have been started again."""
        if self._claim is not None:
            self._claim.keep()
        if self._relief is not None:
            self._relief.keep()

    def _let_go(self) -> None:
        if self._claim is not None:
            self._claim.let_go()
        if self._relief is not None:
            self._relief.close()
        self.admin.close()
        self.server.release()

    def _connect(self) -> None:
        admin = self.admin
        with admin.connection() as connection:
            if connection.info.server_version < OLDEST:
                raise ResourceFailed(
                    f"{self._resource}: the server is PostgreSQL {connection.info.server_version // 10000}",
                    hint="Use version 15 or later; 18 makes the quickest branches",
                    resource=self._resource,
                )
        if not admin.rows("SELECT 1 FROM pg_roles WHERE rolname = current_user AND rolsuper"):
            raise ResourceFailed(
                f"{self._resource}: the user of the connection string is no superuser",
                hint="Name one: statefork makes databases and roles, ends sessions and reads the server's counters",
                resource=self._resource,
            )
        self.names = Names(self._journal, self._resource, self._records.place())
        if self.server.own:
            self._relief = Relief(admin, self.server.process_ids)
            self._relief.keep()
            admin.relieve = self._relief.relieve
        else:
            self._claim = Claim(admin, self.names.owner, self._records.directory())
            self._claim.take()
        make_owner(admin, self.names.owner, own=self.server.own)
        forget_settings(admin, self.names.owner)
        if self._claim is not None:
            self._claim.check_directory()
        self._reachable = sorted(name for (name,) in admin.rows(_REACHED, self.names.owner))
        data = self.server.data_directory()
        self.ways = Ways(admin, data, own=self.server.own)
        self.cloner = Cloner(
            admin, self.names, self.ways, self.server.making, self._options.connections_per_environment_max
        )
        self.workshop = Workshop(self._resource, self.cloner)
        sweep(admin, self.names, self.cloner, self._records.needs)
        if self.server.own and data is not None:
            remove_orphan_directories(admin, data, self.server.making)
        self.ways.look()
        self.workshop.start()

    def stop(self) -> None:
        """Leave nothing on the server but what is recorded; stop it if it is ours. Idempotent."""
        with self._life:
            if not self.running:
                return
            self.running = False
            self.workshop.stop()
            self._let_go()

    def strategy(self) -> Strategy:
        """What is known of it now."""
        if not self.running:
            return self._foreseen()
        strategy = self._with_accelerator(self.ways.strategy(self._pool_size()), self.ways.clones)
        if self._reachable:
            reached = ", ".join(self._reachable)
            strategy = msgspec.structs.replace(
                strategy,
                reason=f"{strategy.reason}. But the server lets every role connect to {reached} "
                "(REVOKE CONNECT ON DATABASE … FROM PUBLIC would end that)",
            )
        return strategy

    def _foreseen(self) -> Strategy:
        try:
            probe = self.server.look_ahead()
        except (MissingDependency, ResourceUnreachable, ResourceFailed) as error:
            return Strategy(name="none", reason=error.message, faster=error.hint)
        except OSError as error:
            probe = ReflinkProbe(False, f"the state directory can't be tried ({error.strerror})")
        return self._with_accelerator(described(probe, own=self.server.own, pool=self._options.pool), probe.works)

    def _with_accelerator(self, strategy: Strategy, clones: bool) -> Strategy:
        told = self.server.acceleration()
        if told and not clones:
            told = "nothing is accelerated, since nothing is cloned"
        return msgspec.structs.replace(strategy, reason=f"{strategy.reason}; {told}") if told else strategy

    def process_ids(self) -> tuple[int, ...]:
        """The server's, if it is ours."""
        return self.server.process_ids()

    def really_clones(self) -> bool:
        """Whether the server shares extents when it is told to clone, tried with a small database."""
        if self.ways.clones:
            name = self.names.new(SCRATCH)
            self.cloner.copy("template0", name, template=False)
            self.cloner.drop(name)
        return self.ways.clones

    def tidy(self) -> None:
        """Remove what killed backends left."""
        if self.running:
            self._keep_sessions()
            remove_broken(self.admin, self.names, self.cloner)
            data = self.server.data_directory()
            if self.server.own and data is not None:
                remove_orphan_directories(self.admin, data, self.server.making)

    # -- databases --------------------------------------------------------------------------------------------

    def import_base(self, source: Source, pulse: Pulse) -> str:
        """A version with the content of a base; its name."""
        scratch, version = self.names.new(SCRATCH), self.names.new(VERSION)
        admin, name = self.admin, sql.Identifier(scratch)
        try:
            with self.server.making.one():
                admin.run(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ALLOW_CONNECTIONS false").format(name))
            import_into(admin, scratch, self.names.owner, source, find_programs(self._options.programs), pulse)
            admin.run(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(name, sql.Identifier(version)),
                sql.SQL("ALTER DATABASE {} IS_TEMPLATE true").format(sql.Identifier(version)),
            )
        except BaseException:
            self.cloner.drop(scratch)
            raise
        self._records.put_token(version)
        return version

    def pool_of(self, version: str) -> None:
        """Keep branches of this version ready."""
        self.ways.measure(version)
        self.cloner.warm(version)
        self.workshop.keep(version, self._pool_size())

    def _pool_size(self) -> int:
        if self.ways.clones or not self.ways.bytes:
            return self._options.pool
        return min(self._options.pool, POOL_COPY_BYTES_MAX // self.ways.bytes)

    def opened(self, version: str) -> Opened:
        """A branch of a version: one that was made in advance, else one made now."""
        return self.workshop.take(version) or self.cloner.branch(version)

    def address(self, database: str) -> dict[str, str | int]:
        """On the server of all; the role has its database's name."""
        return {"name": database, "user": database, **self.server.door()}

    def new_secret(self, database: str) -> str:
        """Another secret for a branch's role; it may log in again."""
        return self.cloner.new_secret(database)

    def closed(self, database: str) -> Closed:
        """For a cut of a branch."""
        return Closed(self.admin, database, self.names.owner, lambda: self.workshop.let_go(database))

    def mark(self, database: str) -> str:
        """What the server counted in a branch."""
        return self.cloner.mark(database)

    @contextmanager
    def copied(self, database: str, closed: Closed, mark: str) -> Iterator[str]:
        """A template made of a branch that nobody is in meanwhile."""
        version = self.names.new(VERSION)
        with self._records.pinned([version]):
            self._keep_sessions()
            closed.shut()
            self.cloner.sealed(version, mark)
            if closed.to_fork and self.ways.clones:
                self.workshop.expect(version, database)
            try:
                self.cloner.copy(database, version, template=True)
            except BaseException:
                self.workshop.leave(version)
                raise
            self._records.put_token(version)
            yield version

    @contextmanager
    def reading(self, version: str) -> Iterator[Connection]:
        """In a copy that is removed afterwards, and so is the role that reads it, which has its name."""
        name = self.names.new(SCRATCH)
        with self._records.pinned([version]):
            self.cloner.copy(version, name, template=False)
        try:
            with as_reader(self.admin, name, name, self.names.owner) as connection:
                yield connection
        finally:
            self.workshop.remove(name)

    def lock_out(self, database: str) -> None:
        """The branch's role can't log in any more, and its sessions have ended."""
        if not self.running:
            return
        if self.admin.rows("SELECT 1 FROM pg_roles WHERE rolname = %s", database):
            self.admin.run(sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(database)))
        end_sessions(self.admin, database)
        forget_settings(self.admin, self.names.owner)

    def _unneeded(self, database: str) -> None:
        if self.running:
            self.workshop.leave(database)
            self.workshop.remove(database)

    def usage(self, database: str) -> Usage:
        """Bytes on disk that a database has alone and that it shares."""
        rows = self.admin.rows("SELECT oid, pg_database_size(oid) FROM pg_database WHERE datname = %s", database)
        if not rows:
            return Usage(private_bytes=0)
        oid, size = rows[0]
        data = self.server.data_directory()
        if data is None or not self.ways.clones:
            return Usage(private_bytes=size)
        allocated = shared = 0
        for path in (data / "base" / str(oid)).iterdir():
            try:
                allocated += path.stat().st_blocks * BLOCK_BYTES
                shared += shared_bytes(path)
            except FileNotFoundError:  # a table that was dropped just now
                continue
        return Usage(private_bytes=max(0, allocated - shared), shared_bytes=shared)
