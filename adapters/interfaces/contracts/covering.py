"""Whether a contract keeps all that tasks and their evaluators read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath, PurePosixPath
from urllib.parse import urlsplit

import msgspec

from statefork.adapters.interfaces.contracts.reading import Read, Tasks
from statefork.engine.contract import Contract, ResourceSpec
from statefork.engine.places import Problem

KEPT, OUTSIDE, MISSING = "kept", "outside", "missing"
DATABASES = ("sqlite", "postgres")
TREES = ("files", "derived", "process")
FILL_IN = "FILL IN"
_NAMED_IN_DSN = re.compile(r"(?:dbname=|://[^/\s]*/)([\w.-]+)")


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """Of one thing that is read: whether the contract keeps it, by which resource, or what is missing."""

    read: Read
    state: str  # kept | outside (declared, and no reset takes it back) | missing
    by: str = ""  # a resource
    why: str = ""


def cover(contract: Contract, tasks: Tasks, sites: Mapping[str, str]) -> list[Covered]:
    """Each thing that is read. ``sites``: the hosts of sites that tasks have names for."""
    return [_covered(contract, read, sites) for read in tasks.reads]


def _covered(contract: Contract, read: Read, sites: Mapping[str, str]) -> Covered:
    match read.kind:
        case "site":
            return _site(contract, read, sites)
        case "database":
            found = [spec.name for spec in _all(contract, *DATABASES) if _is_database(spec, read.name)]
            why = f"no sqlite or postgres resource is, or is called, {database_name(read.name)!r}"
        case "file":
            found = [spec.name for spec in _all(contract, *TREES) if _holds(spec, read.name)]
            why = "no resource of files has a base that holds it"
        case "resource":
            found = [read.name] if read.name in contract.resources else []
            why = f"no resource is called {read.name!r}"
        case _:
            found = [spec.name for spec in _all(contract, "browser")]
            why = "no resource is a browser, which is what keeps cookies and storage"
    return Covered(read=read, state=KEPT, by=found[0]) if found else Covered(read=read, state=MISSING, why=why)


def _all(contract: Contract, *adapters: str) -> Iterator[ResourceSpec]:
    return (
        spec
        for spec in contract.resources.values()
        if spec.adapter in adapters or (spec.private and "process" in adapters)
    )


def hosts(contract: Contract) -> dict[str, str]:
    """The hosts of the contract's sites, each with its resource."""
    found = {}
    for spec in contract.resources.values():
        host = spec.options.get("host") or spec.private.get("host")
        if isinstance(host, str):
            found[canonical(host)] = spec.name
    return found


def canonical(host: str) -> str:
    """A host with its port left out where it is the usual one."""
    return host.lower().removesuffix(":80")


def _site(contract: Contract, read: Read, sites: Mapping[str, str]) -> Covered:
    known = hosts(contract)
    host = canonical(sites.get(read.name, read.name))
    by = known.get(host)
    if by is None and read.name not in sites:  # a site's name: of the resource, or the first part of its host
        wanted = read.name.replace("_", "-")
        by = next((name for other, name in known.items() if wanted in (name, other.partition(".")[0])), None)
        by = by or (read.name if _is_site(contract, read.name) else None)
    if by is not None:
        browsers = [spec for spec in _all(contract, "browser") if spec.adapter == "browser"]
        if browsers and not any(by in spec.depends_on for spec in browsers):
            why = f"{by!r} is its resource, but {browsers[0].name!r} does not depend on it: no page reaches it"
            return Covered(read=read, state=MISSING, by=by, why=why)
        return Covered(read=read, state=KEPT, by=by)
    for spec in _all(contract, "browser"):
        external = spec.options.get("external", [])
        listed = [canonical(urlsplit(str(origin)).netloc) for origin in external] if isinstance(external, list) else []
        if host in listed:
            why = "pages reach it, and what they change there is changed for everybody"
            return Covered(read=read, state=OUTSIDE, by=spec.name, why=why)
    return Covered(
        read=read, state=MISSING, why=f"no resource has the host {host!r}; say which it is: --site {read.name}=HOST"
    )


def _is_site(contract: Contract, name: str) -> bool:
    spec = contract.resources.get(name)
    return spec is not None and ("host" in spec.options or "host" in spec.private)


def database_name(text: str) -> str:
    """What a database is called: the name in a connection string, the stem of a file, or the text itself."""
    found = _NAMED_IN_DSN.search(text)
    if found and not text.startswith("sqlite"):
        return found[1]
    return PurePosixPath(text.removeprefix("sqlite:").lstrip("/") or text).stem if is_sqlite(text) else text


def is_sqlite(text: str) -> bool:
    """Whether it names a file of SQLite."""
    return text.startswith("sqlite") or PurePosixPath(text).suffix in (".sqlite", ".sqlite3", ".db", ".db3")


def _is_database(spec: ResourceSpec, text: str) -> bool:
    name = database_name(text)
    called = {spec.name, spec.name.replace("-", "_")}
    for option in ("base", "live"):
        value = spec.options.get(option)
        if isinstance(value, str) and value:
            called |= {database_name(value), PurePosixPath(value).stem}
    return name in called


def _holds(spec: ResourceSpec, path: str) -> bool:
    base = spec.options.get("base") or spec.private.get("base")
    parts = PurePath(path).parts
    if spec.name in parts[:2]:
        return True
    if not isinstance(base, str) or not base:
        return False
    if PurePath(path).is_relative_to(base):
        return True
    return PurePath(base).name in parts[:-1]


def to_fill_in(contract: Contract) -> Iterator[Problem]:
    """Options that still say that they are to be filled in."""
    for spec in contract.resources.values():
        for above, options in (("", spec.options), ("private.", spec.private)):
            for key, value in options.items():
                if FILL_IN in str(value):
                    place = contract.place(spec.name, f"{above}{key}")
                    yield Problem(place=place, message="is still to be filled in")
