"""A first contract from what tasks read: an entry for each site, database, tree of files, and the browser. Pure.

It is valid as it stands; what nobody can know from tasks (how a site is started, where a database is) says ``FILL IN``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import msgspec

from statefork.adapters.interfaces.contracts.covering import FILL_IN, database_name, is_sqlite
from statefork.adapters.interfaces.contracts.reading import Read, Tasks
from statefork.engine.contract import NAME_LENGTH_MAX

_TOLD_MAX = 4


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of a contract that is being written."""

    name: str
    why: tuple[str, ...]  # lines of comment above it
    options: tuple[tuple[str, object], ...]  # adapter first
    depends_on: tuple[str, ...] = ()


def entries(tasks: Tasks) -> list[Entry]:
    """The resources that a contract for these tasks needs."""
    taken: dict[str, None] = {}
    databases = [(read, _database(read, taken)) for read in tasks.reads if read.kind == "database"]
    trees = list(_trees([read for read in tasks.reads if read.kind == "file"], taken))
    sites = _sites(tasks)
    found = [entry for _, entry in databases] + [entry for _, entry in trees]
    under: dict[str, list[str]] = {}
    for reads, entry in [((read,), entry) for read, entry in databases] + trees:
        owner = _only_site({task for read in reads for task in read.tasks}, sites)
        if owner is not None:
            under.setdefault(owner.name, []).append(entry.name)
    made = [_site(read, tuple(under.get(read.name, ())), taken) for read in sites]
    found += made
    if sites or any(read.kind in ("storage", "cookie") for read in tasks.reads):
        found.append(_browser(tasks, made, taken))
    return found


def text_of(name: str, found: Sequence[Entry], above: Sequence[str] = ()) -> str:
    """The contract as TOML."""
    lines = [*(f"# {line}" for line in above), "[contract]", f"name = {json.dumps(name)}"]
    for entry in found:
        lines += ["", *fragment(entry)]
    return "\n".join(lines) + "\n"


def fragment(entry: Entry) -> Iterator[str]:
    """One entry, as lines of TOML."""
    yield from (f"# {line}" for line in entry.why)
    yield f"[resources.{entry.name}]"
    yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.options)
    if entry.depends_on:
        yield f"depends_on = {json.dumps(list(entry.depends_on))}"


def name_of(text: str, taken: dict[str, None]) -> str:
    """A resource's name out of any text, that no other has."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "state"
    plain = (plain if plain[0].isalpha() else f"r-{plain}")[: NAME_LENGTH_MAX - 4].strip("-")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    taken[name] = None
    return name


def _by(read: Read, what: str) -> str:
    tasks = ", ".join(read.tasks[:_TOLD_MAX]) + (
        f" and {len(read.tasks) - _TOLD_MAX} more" * (len(read.tasks) > _TOLD_MAX)
    )
    details = "; ".join(read.details[:_TOLD_MAX])
    return f"{what}, read by task{'s' * (len(read.tasks) != 1)} {tasks}{f': {details}' if details else ''}"


def _database(read: Read, taken: dict[str, None]) -> Entry:
    name = database_name(read.name)
    why = (_by(read, f"Database {name}"),)
    if is_sqlite(read.name):
        path = read.name.removeprefix("sqlite:///") or read.name
        return Entry(name=name_of(name, taken), why=why, options=(("adapter", "sqlite"), ("base", path)))
    variable = re.sub(r"[^A-Z0-9]", "_", name.upper()) + "_DSN"
    more = f"The variable {variable} holds its connection string; it is copied once, and never written."
    options = (("adapter", "postgres"), ("live_variable", variable))
    return Entry(name=name_of(name, taken), why=(*why, more), options=options)


def _trees(reads: Sequence[Read], taken: dict[str, None]) -> Iterator[tuple[tuple[Read, ...], Entry]]:
    """One for each directory that files are read from."""
    by_folder: dict[str, list[Read]] = {}
    for read in reads:
        folder = str(PurePosixPath(read.name).parent)
        by_folder.setdefault("files" if folder == "." else folder, []).append(read)
    for folder, inside in by_folder.items():
        why = tuple(_by(read, f"File {read.name}") for read in inside[:_TOLD_MAX])
        options = (("adapter", "files"), ("base", folder))
        yield tuple(inside), Entry(name=name_of(PurePosixPath(folder).name, taken), why=why, options=options)


def _sites(tasks: Tasks) -> list[Read]:
    """Each once: a site that has a name in some places and an address in others is the one of that address."""
    found = [read for read in tasks.reads if read.kind == "site"]
    addressed = {read.name.partition(".")[0]: read for read in found if _is_address(read.name)}
    merged = []
    for read in found:
        other = addressed.get(read.name)
        if other is None and read.name.partition(".")[0] in addressed:
            named = [one for one in found if one.name == read.name.partition(".")[0]]
            both = dict.fromkeys(task for one in (read, *named) for task in one.tasks)
            merged.append(msgspec.structs.replace(read, tasks=tuple(both)))
        elif other is None:
            merged.append(read)
    return merged


def _is_address(name: str) -> bool:
    return "." in name or ":" in name


def _only_site(tasks: set[str], sites: Sequence[Read]) -> Read | None:
    """The one site that all of these tasks use; None where there is none, or several."""
    using = [site for site in sites if tasks & set(site.tasks)]
    return using[0] if len(using) == 1 else None


def _site(read: Read, depends_on: tuple[str, ...], taken: dict[str, None]) -> Entry:
    host = read.name if _is_address(read.name) else f"{read.name.replace('_', '-')}.example"
    why = (
        _by(read, f"Site {read.name}"),
        "A process for each environment serves any site. Where statefork has its stack, one server for all of them",
        'costs less: adapter = "web" (docs/reference/contract.md).',
    )
    options = (("adapter", "process"), ("command", f"{FILL_IN}: serve --port {{port}} --data {{data}}"), ("host", host))
    return Entry(name=name_of(host.partition(".")[0], taken), why=why, options=options, depends_on=depends_on)


def _browser(tasks: Tasks, sites: Sequence[Entry], taken: dict[str, None]) -> Entry:
    kept = [read for read in tasks.reads if read.kind in ("storage", "cookie")]
    why = tuple(_by(read, f"{read.kind.capitalize()} {read.name}") for read in kept[:_TOLD_MAX])
    hosts = [str(dict(site.options)["host"]) for site in sites]
    options: tuple[tuple[str, object], ...] = (("adapter", "browser"),)
    if hosts:
        first = [host for host in hosts if host.partition(".")[0] in tasks.start.lower().replace("_", "-")]
        options += (("start", f"http://{(first or hosts)[0]}/"),)
    more = why or ("What agents act and see through; it keeps cookies, storage, tabs and forms.",)
    return Entry(
        name=name_of("browser", taken), why=more, options=options, depends_on=tuple(site.name for site in sites)
    )
