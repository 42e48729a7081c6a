"""A server of its own for each environment, over a copy of a whole data directory (see trees.py).

For where a server can't clone files by itself, or copies them when it is told to clone, and the file system can share
extents all the same. A version is the directory of a server that has ended in order; it is never started. A branch is a
copy of one; its server is started when somebody needs it, by ``bind`` at the latest, and ended by ``unbind``, so parked
environments cost none. To seal is to end the server, copy, and start it again at the same address.

All copies know one database and one role by one name. A copy is closed to that role (connection limit 0) from before
its server starts until its own secret is set, so no secret of an older branch ever opens it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import sql

from statefork.adapters.resources.common import failures_told, pulse
from statefork.adapters.resources.ledger import sync_file_system
from statefork.adapters.resources.postgres import roles
from statefork.adapters.resources.postgres.base import Source
from statefork.adapters.resources.postgres.binaries import find_programs, server_programs
from statefork.adapters.resources.postgres.configuration import PRIVATE_SEGMENT_MB, private_settings
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.cut import Closed, visiting
from statefork.adapters.resources.postgres.databases import DatabaseLedger
from statefork.adapters.resources.postgres.importing import import_into, make_owner
from statefork.adapters.resources.postgres.leftovers import end_processes_in, is_shut_down, remove_shared_memory
from statefork.adapters.resources.postgres.mark import mark as marked
from statefork.adapters.resources.postgres.options import Options
from statefork.adapters.resources.postgres.reader import as_reader
from statefork.adapters.resources.postgres.reading import Connection
from statefork.adapters.resources.postgres.roles import Opened
from statefork.adapters.resources.postgres.server import Setup
from statefork.adapters.resources.postgres.servers import give_up, running_places, server_at
from statefork.adapters.resources.postgres.sessions import let_end
from statefork.adapters.resources.postgres.trees import DATA, MARK, clear, copy_cluster, usage
from statefork.adapters.resources.reflink import Pulse, ReflinkProbe, probe_reflink
from statefork.engine.errors import ResourceFailed
from statefork.engine.ports import Strategy, Usage

DATABASE = "statefork"  # and the role that logs in to it
OWNER = "statefork_app"
READER = "statefork_reader"  # in copies that are read, and nowhere else
VERSION, BRANCH = "v", "b"  # beginnings of layers' names; short, since a socket's path may not be long


class OwnServer:
    """The server of one copy, started when it is needed. Safe for several threads."""

    def __init__(self, resource: str, setup: Setup) -> None:
        self._resource = resource
        self._place = setup.place
        self._lock = threading.RLock()
        self._admin: Admin | None = None
        self.server = server_at(setup)

    def admin(self) -> Admin:
        """The engine's way in. Raises ResourceFailed where it does not start, RuntimeDied where it was given up."""
        with self._lock:
            if self._admin is None:
                self.server.acquire()
                self._admin = Admin(self._resource, self.server.address(), self.server.check, self.server.data)
            self.server.check()
            return self._admin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It has ended in order while the body runs."""
        with self._lock:
            self.admin().close()
            with self.server.paused():
                yield

    def end(self) -> None:
        """Stop it for good. Idempotent."""
        with self._lock:
            admin, self._admin = self._admin, None
            if admin is not None:
                admin.close()
            give_up(self._place)


class PrivateServers:
    """The databases of one resource (see backends.Databases)."""

    def __init__(
        self, resource: str, options: Options, state: Path, journal: str, records: DatabaseLedger, why: str
    ) -> None:
        self._resource = resource
        self._options = options
        self._state = state
        self._journal = journal
        self._records = records
        self._why = why
        self._lock = threading.Lock()
        self._servers: dict[str, OwnServer] = {}  # by branch
        self._probe: ReflinkProbe | None = None
        records.unneeded = self._forget

    # -- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See that servers can be run; end those of a killed engine. Idempotent."""
        if self._probe is not None:
            return
        server_programs(self._options.programs)
        with failures_told(self._resource, "trying the file system"):
            probe = probe_reflink(self._records.root)
        running = set(running_places())
        places = [path for folder in ("layers", "tmp") for path in (self._records.root / folder).glob("*")]
        left = [path / DATA for path in places if path.resolve() not in running]
        end_processes_in(*left)
        for data in left:
            remove_shared_memory(data)
        self._probe = probe

    def stop(self) -> None:
        """End all servers. Idempotent."""
        with self._lock:
            servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            server.end()
        self._probe = None

    def strategy(self) -> Strategy:
        """Why each environment has a server, and whether its files are shared."""
        return described(self._why, self._probe or foreseen(self._records.root), self._options)

    def process_ids(self) -> tuple[int, ...]:
        """Of all servers that run now."""
        with self._lock:
            servers = list(self._servers.values())
        return tuple(pid for server in servers for pid in server.server.process_ids())

    def tidy(self) -> None:
        """A backend that was killed leaves nothing: its server recovers before it ends, or goes with its branch."""

    # -- databases --------------------------------------------------------------------------------------------

    def import_base(self, source: Source, pulse: Pulse) -> str:
        """A new cluster with one database."""
        programs = find_programs(self._options.programs)
        with failures_told(self._resource, "making the base"), self._records.new_layer(VERSION) as (layer, place):
            server = OwnServer(self._resource, self._setup(layer, place))
            try:
                admin = server.admin()
                make_owner(admin, OWNER, own=True)
                name = sql.Identifier(DATABASE)
                admin.run(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ALLOW_CONNECTIONS false").format(name))
                import_into(admin, DATABASE, OWNER, source, programs, pulse)
                admin.together(
                    *roles.making(DATABASE, sql.NULL, OWNER, self._options.connections_per_environment_max),
                    sql.SQL("ALTER DATABASE {} CONNECTION LIMIT 0 ALLOW_CONNECTIONS true").format(name),
                )
                for spare in ("template0", "template1"):  # they would be half of each copy
                    admin.run(f"ALTER DATABASE {spare} IS_TEMPLATE false", f"DROP DATABASE {spare}")
                content = _mark(admin)
            finally:
                server.end()
            if not is_shut_down(place / DATA):
                raise ResourceFailed(
                    f"{self._resource}: the server that made the base did not shut down in order",
                    hint="Look at the machine's memory and disk, then try again",
                    resource=self._resource,
                )
            self._complete(place, content)
        return layer

    def _complete(self, place: Path, content: str) -> None:
        """Make a cluster a version."""
        clear(place)
        (place / MARK).write_text(content)
        if self._options.survives == "os":
            sync_file_system(place)

    def pool_of(self, version: str) -> None:
        """Nothing is made in advance: each copy would cost some thousand files."""

    def opened(self, version: str) -> Opened:
        """A copy of a version. Its server is not started yet."""
        source = self._records.layer(version)
        with failures_told(self._resource, "copying a version"), self._records.new_layer(BRANCH) as (layer, place):
            self._copy(source, place, pulse)
        return Opened(database=layer, secret="", mark=(source / MARK).read_text())

    def _copy(self, source: Path, target: Path, pulse: Pulse) -> None:
        copy_cluster(source, target, reflink=self._probe is not None and self._probe.works, pulse=pulse)

    def _setup(self, name: str, place: Path) -> Setup:
        return Setup(
            name=f"{self._resource}-{name}",
            state=self._state,
            journal=self._journal,
            place=place,
            settings=private_settings(self._options),
            programs=self._options.programs,
            log=place / "log",
            initdb=(f"--wal-segsize={PRIVATE_SEGMENT_MB}",),
        )

    def _server(self, database: str) -> OwnServer:
        with self._lock:
            server = self._servers.get(database)
            if server is None:
                server = OwnServer(self._resource, self._setup(database, self._records.layer(database)))
                self._servers[database] = server
            return server

    def _forget(self, database: str) -> None:
        with self._lock:
            server = self._servers.pop(database, None)
        if server is not None:
            server.end()
        else:  # another resource object's
            give_up(self._records.layer(database))
        remove_shared_memory(self._records.layer(database) / DATA)

    def address(self, database: str) -> dict[str, str | int]:
        """Of the branch's own server."""
        server = self._server(database)
        server.admin()
        return {"name": DATABASE, "user": DATABASE, **server.server.door()}

    def new_secret(self, database: str) -> str:
        """Start the server, and open it to a role that has just this secret."""
        admin, secret = self._server(database).admin(), roles.new_secret()
        admin.together(
            roles.opening(DATABASE, roles.verifier(admin, DATABASE, secret)),
            sql.SQL("ALTER DATABASE {} CONNECTION LIMIT -1").format(sql.Identifier(DATABASE)),
        )
        return secret

    def lock_out(self, database: str) -> None:
        """End the server."""
        with self._lock:
            server = self._servers.pop(database, None)
        if server is not None:
            server.end()

    def closed(self, database: str) -> Closed:
        """For a cut of a branch."""
        return Closed(self._server(database).admin(), DATABASE, OWNER)

    def mark(self, database: str) -> str:
        """What the branch's server counted; it goes on from what its version's had counted."""
        return _mark(self._server(database).admin())

    @contextmanager
    def copied(self, database: str, closed: Closed, mark: str) -> Iterator[str]:
        """A copy made while the server is down."""
        closed.leave()
        with failures_told(self._resource, "sealing"), self._records.new_layer(VERSION) as (layer, place):
            with self._server(database).paused():
                self._copy(self._records.layer(database), place, pulse)
            self._complete(place, mark)
        with self._records.pinned([layer]):
            yield layer

    @contextmanager
    def reading(self, version: str) -> Iterator[Connection]:
        """A copy with a server of its own, both for as long as the body runs."""
        with self._records.scratch() as place:
            with failures_told(self._resource, "reading a version"), self._records.pinned([version]):
                self._copy(self._records.layer(version), place, pulse)
            server = OwnServer(self._resource, self._setup(place.name, place))
            try:
                admin = server.admin()
                admin.run(sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(DATABASE)))
                with as_reader(admin, DATABASE, READER, OWNER) as connection:
                    yield connection
            finally:
                server.end()

    def usage(self, database: str) -> Usage:
        """As the file system counts."""
        return usage(self._records.layer(database))


def _mark(admin: Admin) -> str:
    with visiting(admin, DATABASE) as connection:
        let_end(connection)
        return marked(connection)


def foreseen(directory: Path) -> ReflinkProbe:
    """Whether copies will share their extents."""
    try:
        return probe_reflink(directory)
    except OSError as error:
        return ReflinkProbe(False, f"the state directory can't be tried ({error.strerror})")


def described(why: str, probe: ReflinkProbe, options: Options) -> Strategy:
    """The strategy in words."""
    each = "each environment has a server of its own, over a data directory"
    if probe.works:
        name, reason = "private servers", f"{why}; {probe.reason}: {each} that shares all that it does not write"
        given = [name for name in ("programs", "strategy") if getattr(options, name) not in ("", "auto")]
        faster = f"PostgreSQL 18 clones databases of one server: leave out {' and '.join(given)}" if given else ""
    else:
        name, reason = "private servers (copy)", f"{why}; {probe.reason}: {each} that is a whole copy"
        faster = "a store (statefork store init) or a state directory on XFS (reflink=1) or btrfs"
    if options.pool:
        reason += "; nothing is made in advance"
    if options.accelerate:
        reason += "; nothing is accelerated, since no server copies"
    return Strategy(name=name, reason=reason, faster=faster)
