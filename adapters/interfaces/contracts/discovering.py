"""Runs something in an environment of a contract with watching on, and says what state it touched beyond the contract.

Watched are files (see ``writes``), servers that were named (see ``servers``), whom the run talked to and what it left
running (see ``kin``), hosts that pages were refused, cookies of hosts that are no sites, and hosts outside that were
asked to change something. What is found is a hint for a person: not all state matters.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import msgspec

from statefork.adapters.interfaces.contracts.covering import canonical, hosts
from statefork.adapters.interfaces.contracts.deriving import Entry, fragment, name_of
from statefork.adapters.interfaces.contracts.kin import MARK_VARIABLE, Kin
from statefork.adapters.interfaces.contracts.servers import Cache, Databases
from statefork.adapters.interfaces.contracts.writes import Heard, Walked, Write, is_scratch, is_sqlite
from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.interfaces.worlds import Progress, read_contract
from statefork.adapters.resources.process.standing import Who
from statefork.engine.contract import Contract
from statefork.engine.errors import NotReady
from statefork.journal.events import RequestRefused

ENVIRONMENT = "discover"
_NAMED_MAX = 5
_UNKNOWN_HOST = re.compile(r"(\S+) is not a host of this environment's world")
_COOKIE = re.compile(r"^cookie \.?(?P<host>[^/\s]+)/")


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and what to watch besides."""

    contract: str
    run: str  # a command line for /bin/sh
    state: Path  # of its own: nothing in it is kept
    watch: tuple[Path, ...] = ()  # directories in which writes count
    databases: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """State that the contract does not have."""

    kind: str  # files | database | cache | cookies | host | process | service
    what: str
    evidence: str
    fragment: str = ""  # of a contract, to paste; empty where a person has to think


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    status: int  # of the command
    missed: tuple[Missed, ...]
    notes: tuple[str, ...] = ()


async def discover(wish: Wish, progress: Progress | None = None) -> Discovered:
    """Open the contract in a new state directory, make an environment, run the command, close, and compare.

    Raises whatever opening the contract raises, and ResourceUnreachable for a server that can't be watched.
    """
    parsed, file = read_contract(wish.contract)
    roots = _roots(wish, file)
    watching = _Watching(wish, roots)
    await anyio.to_thread.run_sync(watching.begin)
    try:
        async with open_engine(wish.contract, state=wish.state, progress=progress) as engine, serve_control(engine):
            env = await engine.create(ENVIRONMENT)
            begin = env.ref
            status = await _run(wish, env, watching.mark)
            left = await anyio.to_thread.run_sync(watching.kin.left)
            seen = [*await _refusals(engine, parsed), *await _cookies(engine, env, str(begin), parsed)]
    finally:
        found = await anyio.to_thread.run_sync(watching.end)
    declared = _declared(wish)
    taken = dict.fromkeys(parsed.resources)
    processes = await _ended(left, taken)
    missed = [*found, *watching.of_files(declared, taken), *seen, *processes]
    return Discovered(status=status, missed=tuple(missed), notes=tuple(watching.notes()))


class _Watching:
    """Everything that looks from outside, from before the engine starts until after it has ended."""

    def __init__(self, wish: Wish, roots: Sequence[Path]) -> None:
        self.mark = secrets.token_hex(8)
        self.kin = Kin(self.mark)
        self._roots = roots
        self._files: Heard | Walked = Heard(roots, self.kin.program)
        self._written: list[Write] = []
        self._databases = [Databases(dsn) for dsn in wish.databases]
        self._caches = [Cache(url) for url in wish.caches]
        self._why_walked = ""

    def begin(self) -> None:
        """Raises ResourceUnreachable, MissingDependency."""
        for database in self._databases:
            database.begin()
        for cache in self._caches:
            cache.begin()
        self.kin.begin()
        try:
            self._files.begin()
        except OSError as error:
            self._why_walked = error.strerror or str(error)
            self._files = Walked(self._roots)
            self._files.begin()

    def end(self) -> list[Missed]:
        """What servers tell, and whom the run talked to."""
        self._written = self._files.end()
        self.kin.end()
        found = [_database(server.dsn, name, rows) for server in self._databases for name, rows in server.end()]
        found += [_cache(server.url, keys) for server in self._caches if (keys := server.end())]
        for one in self.kin.connections():
            evidence = f"{one.program} talked to it, and nobody of the run listens there"
            found.append(Missed(kind="service", what=f"{one.address}:{one.port}", evidence=evidence))
        return found

    def of_files(self, declared: Sequence[Path], taken: dict[str, None]) -> Iterator[Missed]:
        """Writes that no resource has, by directory; databases of SQLite each by itself."""
        folders: dict[str, list[Write]] = {}
        for write in self._written:
            path = Path(write.path)
            inside = any(path.is_relative_to(root) for root in self._roots)
            if inside and not is_scratch(write.path) and not any(map(path.is_relative_to, declared)) and path.exists():
                if is_sqlite(write.path):
                    options = (("adapter", "sqlite"), ("base", write.path))
                    yield _missed("database", write.path, _who([write]), path.stem, options, taken)
                else:
                    folders.setdefault(str(path.parent), []).append(write)
        for folder, writes in sorted(folders.items()):
            options = (("adapter", "files"), ("base", folder))
            yield _missed("files", folder, _who(writes), Path(folder).name, options, taken)

    def notes(self) -> Iterator[str]:
        """What the findings are worth."""
        if self._why_walked:
            yield (
                f"Files were compared by their change times, since listening can't be had ({self._why_walked}): others "
                "on this machine may have written them"
            )
        if self._files.unknown:
            yield (
                f"{self._files.unknown} writes were by processes that had ended before it was known whose they were: "
                "where no program is named, others may have written"
            )


def _who(writes: Sequence[Write]) -> str:
    names = ", ".join(Path(write.path).name for write in writes[:_NAMED_MAX])
    more = f" and {len(writes) - _NAMED_MAX} more" if len(writes) > _NAMED_MAX else ""
    programs = sorted({write.program for write in writes if write.program})
    return f"{names}{more} written" + (f" by {', '.join(programs)}" if programs else "")


def _missed(
    kind: str, what: str, evidence: str, name: str, options: tuple[tuple[str, object], ...], taken: dict[str, None]
) -> Missed:
    entry = Entry(name=name_of(name, taken), why=(evidence,), options=options)
    return Missed(kind=kind, what=what, evidence=evidence, fragment="\n".join(fragment(entry)))


def _database(dsn: str, name: str, rows: int) -> Missed:
    variable = re.sub(r"[^A-Z0-9]", "_", name.upper()) + "_DSN"
    options = (("adapter", "postgres"), ("live_variable", variable))
    evidence = f"{rows} rows were written in it"
    return _missed("database", name, evidence, name, options, {})


def _cache(url: str, keys: Sequence[str]) -> Missed:
    more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
    evidence = f"{len(keys)} new keys: {', '.join(keys[:_NAMED_MAX])}{more}"
    place = urlsplit(url)
    return _missed("cache", f"{place.hostname}:{place.port or 6379}", evidence, "cache", (("adapter", "valkey"),), {})


def _roots(wish: Wish, file: Path) -> list[Path]:
    """Where writes count: where people keep things, unless directories were named."""
    if wish.watch:
        return [path.resolve() for path in wish.watch]
    usual = [file.parent, Path.cwd(), Path.home(), Path("/var/lib"), Path("/srv")]
    found: list[Path] = []
    for path in (path.resolve() for path in usual if path.is_dir()):
        if path != Path("/") and not any(path.is_relative_to(other) for other in found):
            found = [other for other in found if not other.is_relative_to(path)] + [path]
    return found


def _declared(wish: Wish) -> list[Path]:
    """Where it is in order to write: the state directory, and what it would be silly to name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [wish.state.resolve(), cache.resolve()]


async def _run(wish: Wish, env: Environment, mark: str) -> int:
    """The command, in the environment's company. What it leaves running is found by its mark."""
    told = {"STATEFORK_STATE": str(wish.state), "STATEFORK_ENV": env.name, MARK_VARIABLE: mark}
    with contextlib.suppress(NotReady):
        told["STATEFORK_BASE_URL"] = env.base_url()
    for name, binding in env.bindings.items():
        if "base_url" in binding.address:
            variable = f"STATEFORK_BASE_URL_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"
            told[variable] = str(binding.address["base_url"])
    process = await anyio.open_process(
        ["/bin/sh", "-c", wish.run], stdin=None, stdout=2, stderr=2, env={**os.environ, **told}
    )
    async with process:
        return await process.wait()


async def _refusals(engine: Engine, contract: Contract) -> list[Missed]:
    """Hosts that pages asked for, and that are not of the world."""
    asked: dict[str, int] = {}
    async for recorded in engine.journal.read():
        event = recorded.event
        if isinstance(event, RequestRefused) and event.code == "unknown_host":
            refused = _UNKNOWN_HOST.match(event.detail)
            if refused and canonical(refused[1]) not in hosts(contract):
                asked[refused[1]] = asked.get(refused[1], 0) + 1
    return [
        Missed(
            kind="host",
            what=host,
            evidence=f"pages asked for it {requests} times, and were refused",
            fragment=f"# a site of the world: a resource with host = {host!r}; or, outside of it, on the browser:\n"
            f'external = ["https://{host}"]',
        )
        for host, requests in sorted(asked.items())
    ]


async def _cookies(engine: Engine, env: Environment, begin: str, contract: Contract) -> list[Missed]:
    """Cookies of hosts that are no sites of the contract."""
    found: dict[str, list[str]] = {}
    now = await env.snapshot()
    for resource in (await engine.diff(begin, now)).resources.values():
        for change in resource.changes if resource.adapter == "browser" else ():
            cookie = _COOKIE.match(change.name)
            if cookie and not _is_site(cookie["host"], contract):
                found.setdefault(cookie["host"], []).append(change.name.rpartition(" ")[2])
    return [
        Missed(
            kind="cookies",
            what=host,
            evidence=f"set: {', '.join(names[:_NAMED_MAX])}; what they stand for is kept there, where no reset reaches",
        )
        for host, names in sorted(found.items())
    ]


def _is_site(host: str, contract: Contract) -> bool:
    return any(
        site.partition(":")[0] == host or site.partition(":")[0].endswith(f".{host}") for site in hosts(contract)
    )


async def _ended(left: Sequence[Who], taken: dict[str, None]) -> list[Missed]:
    """What the command left running; it is ended, by its number."""
    found = []
    for process in left:
        words = await anyio.to_thread.run_sync(_words_of, process.pid)
        if not process.lives or not words:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGTERM)
        options = (("adapter", "process"), ("command", words), ("ready", "running"))
        evidence = f"left running by the command (process {process.pid})"
        found.append(_missed("process", " ".join(words)[:200], evidence, Path(words[0]).name, options, taken))
    return found


def _words_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if word]
    return []
