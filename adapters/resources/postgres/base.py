"""Making the base of a contract: a dump, a SQL file or a live database, imported into a new and empty database.

Whoever owned the objects before, here one role does, that nobody logs in as: statements about owners and privileges are
left out, so that a dump needs no role that is not there. A base is imported by a role without rights (see importer.py);
extensions are made first, by a superuser, as most need one, and event triggers last, so that none answers to anything
here. Nothing is repaired: the first error ends the import, told with its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec
import psycopg

from statefork.adapters.resources.postgres.binaries import find_programs, restricts
from statefork.adapters.resources.postgres.importer import SETTINGS, Refusal, importer, run_aside
from statefork.adapters.resources.postgres.mark import mark
from statefork.adapters.resources.postgres.programs import Program, environment
from statefork.adapters.resources.postgres.reading import Connection, rows, run
from statefork.adapters.resources.postgres.sqlfile import Aside, Refused, adapted
from statefork.adapters.resources.reflink import Pulse, no_pulse
from statefork.engine.errors import ContractError, MissingDependency

_CHUNK_BYTES = 1 << 20


class Source(msgspec.Struct, frozen=True):
    """What a base is made from: a path, or a connection string."""

    kind: str  # sql | custom | tar | directory | live
    path: Path | None = None
    dsn: str = ""

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else "the live database"


def source_of(base: Path) -> Source:
    """Look at a file or directory. Raises ContractError where it is no base."""
    if base.is_dir():
        if (base / "toc.dat").is_file():
            return Source("directory", base)
        raise _bad(
            Source("", base), "the directory is no dump: it has no toc.dat", "Make it by pg_dump --format=directory"
        )
    if not base.is_file():
        raise _bad(
            Source("", base),
            "there is no file or directory",
            "Make the base first, or name a build module that makes it",
        )
    with base.open("rb") as file:
        head = file.read(512)
    if head.startswith(b"PGDMP"):
        return Source("custom", base)
    if head[257:262] == b"ustar":
        return Source("tar", base)
    for magic, packed in ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PK", "zip"), (b"BZh", "bzip2")):
        if head.startswith(magic):
            raise _bad(Source("", base), f"the file is packed ({packed})", "Unpack it, or use pg_dump --format=custom")
    return Source("sql", base)


def live(dsn: str) -> Source:
    """A database that serves somewhere; it is read, never written."""
    return Source("live", None, dsn)


def fingerprint(source: Source, pulse: Pulse = no_pulse) -> str:
    """Equal for a source that has not changed: a file's bytes; of a live database, what its server counted.

    A live database that somebody is using has a new one each time. Raises ContractError.
    """
    whole = hashlib.sha256(f"statefork postgres base 1 {source.kind}".encode())
    if source.path is None:
        try:
            with psycopg.connect(source.dsn, autocommit=True) as connection:
                system = rows(connection, "SELECT system_identifier FROM pg_catalog.pg_control_system()")[0][0]
                whole.update(f"{system} {mark(connection)}".encode())
        except psycopg.Error as error:
            raise _bad(source, str(error), "") from error
        return whole.hexdigest()
    files = sorted(source.path.rglob("*")) if source.path.is_dir() else [source.path]
    for path in (path for path in files if path.is_file()):
        whole.update(f"\0{path.relative_to(source.path)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                whole.update(chunk)
                pulse()
    return whole.hexdigest()


def fill(source: Source, target: str, owner: str, programs: Path, pulse: Pulse = no_pulse) -> None:
    """Import a source into a new and empty database.

    ``target`` is a connection string for it, as a superuser; ``programs`` is the directory of psql, pg_dump and
    pg_restore. Raises ContractError with the place.
    """
    with importer(target, owner) as base:
        filling = _Filling(source, base, owner, programs, pulse)
        aside = filling.aside()
        try:
            filling.run(run_aside(target, owner, [statement for statement in aside if statement.extension]))
        except Refusal as refusal:
            raise filling.refused(refusal) from refusal
    try:
        run_aside(target, owner, [statement for statement in aside if not statement.extension])
    except Refusal as refusal:
        raise filling.refused(refusal) from refusal


def dump(dsn: str, path: Path, programs: Path, pulse: Pulse = no_pulse) -> None:
    """Write what makes a database again as SQL, to a file that is not there yet. Raises ContractError, OSError."""
    with _dumping(live(dsn), programs, pulse) as lines, path.open("xb") as file:
        for line in lines:
            file.write(line)


@contextlib.contextmanager
def _dumping(source: Source, programs: Path, pulse: Pulse, *options: str) -> Iterator[Iterable[bytes]]:
    command: list[str | Path] = [programs / "pg_dump", "--no-owner", "--no-privileges"]
    command += ["--no-publications", "--no-subscriptions", *options]
    with Program(command, environment(source.dsn)) as running:
        assert running.process.stdout is not None
        yield running.process.stdout
        if running.failed(pulse):
            raise _bad(source, f"pg_dump says: {_restore_error(running.said())}", "")


def freeze(connection: Connection) -> None:
    """Make a database cheap to clone and to read: no read of it writes a hint any more. Ends with a checkpoint."""
    assert connection.autocommit, "VACUUM runs in no transaction"
    run(connection, "CHECKPOINT")  # what was committed without waiting for the log counts as visible to all only then
    run(connection, "VACUUM (FREEZE, ANALYZE)")
    run(connection, "CHECKPOINT")


class _Filling:
    """One import, by the role that ``base`` logs in as. Whatever may fail raises ContractError with the place."""

    def __init__(self, source: Source, base: str, owner: str, programs: Path, pulse: Pulse) -> None:
        self._source = source
        self._base = base
        self._database = psycopg.conninfo.conninfo_to_dict(base)["dbname"]
        self._programs = programs
        self._pulse = pulse
        settings = {**SETTINGS, "role": owner, "client_min_messages": "warning"}
        self._environment = environment(base, settings=settings, bare=True)
        self._owner = owner
        self._aside: list[Aside] = []
        self._entries: list[bytes] = []  # of an archive, but for those set aside

    def aside(self) -> list[Aside]:
        """Go over the source; its statements that are a superuser's."""
        with self._statements() as lines:
            try:
                for number, _ in enumerate(adapted(lines, self._aside)):
                    if number % _PULSE_LINES == _PULSE_LINES - 1:
                        self._pulse()
            except Refused as error:
                raise self._leaves(error) from error
        return self._aside

    def run(self, schemas: Collection[str]) -> None:
        """Everything but what is set aside; ``schemas`` were made for extensions."""
        if self._source.path is None:
            with self._dump() as lines:
                self._feed_psql(lines, schemas)
        elif self._source.kind == "sql":
            with self._source.path.open("rb") as file:
                self._feed_psql(file, schemas)
        else:
            made = tuple(f" SCHEMA - {schema} ".encode() for schema in schemas)
            self._restore([entry for entry in self._entries if not any(words in entry for words in made)])

    def refused(self, refusal: Refusal) -> ContractError:
        """What the server says about a statement that was set aside."""
        line = refusal.statement.line if self._source.kind == "sql" else None
        return _bad(self._source, f"PostgreSQL says: {refusal.said}", _hint(refusal.said), line)

    @contextlib.contextmanager
    def _statements(self) -> Iterator[Iterable[bytes]]:
        if self._source.path is None:
            with self._dump("--schema-only") as lines:
                yield lines
        elif self._source.kind == "sql":
            with self._source.path.open("rb") as file:
                yield file
        else:
            with self._written() as lines:
                yield lines

    # -- SQL --------------------------------------------------------------------------------------------------

    def _dump(self, *options: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
        return _dumping(self._source, self._programs, self._pulse, *options)

    def _feed_psql(self, lines: Iterable[bytes], schemas: Collection[str]) -> None:
        programs, bare = _psql(self._programs)
        command: list[str | Path] = [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1"]
        command += ["-d", f"{self._database}", "-U", f"{self._database}"]
        if not bare:
            command += ["-c", f"\\restrict {secrets.token_hex(16)}"]  # as long as it runs, it obeys SQL only
        with Program([*command, "-f", "-"], self._environment, feed=True, unprivileged=True) as psql:
            refused: list[Refused] = []
            wanted = adapted(lines, [], schemas, bare=bare)
            feeder = threading.Thread(target=_feed, args=(wanted, psql, refused), name="statefork-postgres-base")
            feeder.start()
            try:
                failed = psql.failed(self._pulse)
            finally:
                psql.end()  # the feeder then finds its pipe closed
                feeder.join()
            if refused:
                raise self._leaves(refused[0])
            if failed:
                line, said = _psql_error(psql.said())
                raise _bad(self._source, f"PostgreSQL says: {said}", _hint(said), line)

    def _leaves(self, refused: Refused) -> ContractError:
        hint = "A base is the dump of one database: make it by pg_dump, without --create"
        return _bad(self._source, refused.why, hint, refused.line)

    # -- archives ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _written(self) -> Iterator[Iterable[bytes]]:
        """The statements of the entries that are a superuser's, as SQL."""
        command: list[str | Path] = [self._programs / "pg_restore", "--list", f"{self._source.path}"]
        with Program(command, self._environment) as listing:
            assert listing.process.stdout is not None
            entries = listing.process.stdout.read().splitlines(keepends=True)
            self._check(listing)
        aside = [entry for entry in entries if _ASIDE_ENTRY.match(entry)]
        self._entries = [entry for entry in entries if not _ASIDE_ENTRY.match(entry)]
        if not aside:
            yield []
            return
        with self._restoring(aside, "-f", "-") as restore:
            assert restore.process.stdout is not None
            yield restore.process.stdout
            self._check(restore)

    def _restore(self, entries: list[bytes]) -> None:
        if not any(entry[:1].isdigit() for entry in entries):
            return
        options = ["-d", f"{self._database}", "-U", f"{self._database}", f"--role={self._owner}"]
        options += ["--exit-on-error", "--verbose"]  # it names the entry that failed only then
        with self._restoring(entries, *options) as restore:
            self._check(restore)

    @contextlib.contextmanager
    def _restoring(self, entries: list[bytes], *options: str) -> Iterator[Program]:
        with tempfile.NamedTemporaryFile(prefix="statefork-contents-") as listed:
            listed.write(b"".join(entries))
            listed.flush()
            command: list[str | Path] = [self._programs / "pg_restore", "--no-owner", "--no-privileges"]
            command += ["--no-publications", "--no-subscriptions", "-L", listed.name, *options, f"{self._source.path}"]
            with Program(command, self._environment) as restore:
                yield restore

    def _check(self, restore: Program) -> None:
        if restore.failed(self._pulse):
            said = _restore_error(restore.said())
            raise _bad(self._source, f"pg_restore says: {said}", _hint(said))


def _psql(programs: Path) -> tuple[Path, bool]:
    """Where a psql is, if possible one with a restricted mode (any speaks to any server), and whether it has none."""
    if restricts(programs):
        return programs, False
    with contextlib.suppress(MissingDependency):
        if restricts(packaged := find_programs()):
            return packaged, False
    return programs, True


def _feed(lines: Iterable[bytes], psql: Program, refused: list[Refused]) -> None:
    pipe = psql.process.stdin
    assert pipe is not None
    try:
        for line in lines:
            pipe.write(line)
    except Refused as error:
        refused.append(error)
    except BrokenPipeError:  # psql has ended; it says why
        return
    finally:
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


_ASIDE_ENTRY = re.compile(rb"\d+; \d+ \d+ (?:COMMENT - )?(?:EXTENSION|EVENT TRIGGER) ")
_PULSE_LINES = 1 << 18
_PSQL_ERROR = re.compile(r"^psql:<stdin>:(?P<line>\d+): (?:ERROR|FATAL|error|PANIC):\s+(?P<said>.*)", re.MULTILINE)
_ENTRY = re.compile(r"^pg_restore: from TOC entry \d+; \d+ \d+ (?P<entry>.*?) \S+$", re.MULTILINE)
_ERROR = re.compile(r"^pg_\w+: error: (?P<said>.*(?:\n(?:DETAIL|HINT):.*)*)", re.MULTILINE)


def _psql_error(said: str) -> tuple[int | None, str]:
    """The line and the words of the error that ended psql."""
    found = list(_PSQL_ERROR.finditer(said))
    return (int(found[-1]["line"]), found[-1]["said"]) if found else (None, said.splitlines()[-1])


def _restore_error(said: str) -> str:
    """The entry of the dump and the words of the first error of pg_restore or pg_dump."""
    entry, error = _ENTRY.search(said), _ERROR.search(said)
    words = error["said"] if error else said.splitlines()[-1]
    return f"{entry['entry']}: {words}" if entry else words


def _hint(said: str) -> str:
    if "backslash commands are restricted" in said:
        return "A base holds SQL and the data of COPY, no commands of psql's own"
    if "multiple commands" in said:
        return "CREATE EXTENSION and its like are run by themselves: end the line after the semicolon"
    if "extension" in said and "is not available" in said:
        return "The server has no such extension: install it there, or make the dump without it"
    if re.search(r'role "[^"]*" does not exist', said):
        return "A base may not name roles: objects belong to one role here. Leave the role out of the dump"
    return ""


def _bad(source: Source, what: str, hint: str, line: int | None = None) -> ContractError:
    place = f"{source}:{line}" if line is not None else f"{source}"
    return ContractError(f"{place}: {what}", hint=hint, path=str(source.path or ""), file=str(source), line=line)
