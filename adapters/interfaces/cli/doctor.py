"""``statefork doctor``: what this machine offers, what is missing, and what would be faster."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from statefork.adapters.interfaces.cli.faults import EXIT_CANNOT
from statefork.adapters.interfaces.cli.options import STATE, JsonOption, StateOption
from statefork.adapters.interfaces.cli.output import Out
from statefork.adapters.interfaces.control.client import engine_runs
from statefork.engine.ports import Strategy

EXAMPLES = """
    statefork doctor
    statefork doctor ./shop.toml --state /var/lib/shop
"""
PYTHON_MIN = (3, 11)
FREE_BYTES_MIN = 1024**3
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
DEMO_PACKAGES = ("django", "oscar", "whoosh", "PIL")

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
        typer.Argument(help="Whose resources to look at: a contract file or a packaged world.", metavar="[CONTRACT]"),
    ] = "shop",
    state: StateOption = STATE,
    as_json: JsonOption = False,
) -> None:
    """Say what this machine offers: each adapter's strategy with its reason, and what would be faster.

    Exit status: 0 everything required is there, 2 something is missing (it says what to install).
    """
    out = Out(as_json=as_json)
    findings = [*_machine(), *_loopback(), *_directory(state), *_adapters(contract, state)]
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


def _machine() -> Iterator[Finding]:
    version = platform.python_version()
    wanted = ".".join(map(str, PYTHON_MIN))
    good = sys.version_info >= PYTHON_MIN
    yield Finding(
        what="Python", grade="ok" if good else "missing", found=version, advice="" if good else f"install {wanted}"
    )
    system = platform.system()
    yield Finding(
        what="system",
        grade="ok" if system == "Linux" else "missing",
        found=f"{system} {platform.release()}, {os.cpu_count()} CPUs",
        advice="" if system == "Linux" else "statefork runs on Linux",
    )
    lacking = [name for name in DEMO_PACKAGES if importlib.util.find_spec(name) is None]
    yield Finding(
        what="packages of the demo shop",
        grade="info" if lacking else "ok",
        found=f"without {', '.join(lacking)}" if lacking else "installed",
        advice="for `statefork demo`: pip install 'statefork[demo]'" if lacking else "",
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
    yield Finding(what="engine", grade="info", found="runs on it" if engine_runs(state) else "none runs on it")


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
    """A temporary directory on the file system that holds (or would hold) the state directory."""
    place = _existing(state)
    writable = place if place.is_dir() and os.access(place, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=".statefork-doctor-", dir=writable) as folder:
        yield Path(folder)


def _adapters(contract: str, state: Path) -> Iterator[Finding]:
    from statefork.adapters.interfaces.registry import make_resources
    from statefork.adapters.interfaces.worlds import read_contract
    from statefork.engine.ports import Services

    parsed, file = read_contract(contract)
    with _beside(state) as folder:
        services: Any = Services(state=folder, journal="doctor", blobs=None, base_dir=file.parent)
        for name, resource in make_resources(parsed, services).items():
            yield _finding(f"{name} ({resource.adapter})", resource.strategy())


def _finding(what: str, strategy: Strategy) -> Finding:
    if strategy.name == "none":
        return Finding(what=what, grade="missing", found=strategy.reason, advice=strategy.faster)
    return Finding(
        what=what,
        grade="slower" if strategy.faster else "ok",
        found=f"{strategy.name}: {strategy.reason}",
        advice=f"faster: {strategy.faster}" if strategy.faster else "",
    )
