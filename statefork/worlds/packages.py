"""Debian packages that a world's application comes from: looked up, and installed where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from statefork.engine.errors import MissingDependency, ResourceFailed
from statefork.worlds.making import Progress, alone, cache_place, run_child

_LOCK_S = 600  # of another installation on this machine
_NO_SERVICES = Path("/usr/sbin/policy-rc.d")
"""Asked by Debian's packages whether they may start what they install (101: no)."""


def versions(packages: Sequence[str], world: str) -> dict[str, str]:
    """The versions that are installed, or would be. Raises MissingDependency when a package is not and can't be."""
    found = {name: installed(name) for name in packages}
    absent = [name for name, version in found.items() if not version]
    if absent:
        _check_may_install(absent, world)
        if not all(map(_candidate, absent)):  # nobody has asked what there is yet
            with alone(cache_place("packages"), _quietly):
                _read_lists(_quietly, world)
        found |= {name: _candidate(name) for name in absent}
    if unknown := [name for name, version in found.items() if not version]:
        raise MissingDependency(
            f"the {world} needs the packages {', '.join(unknown)}, which this machine's sources of packages don't have",
            hint="Debian 12 has them",
        )
    return found


def install(
    packages: Sequence[str], progress: Progress, *, world: str, answers: Mapping[str, str] | None = None
) -> None:
    """Install what is absent; ``answers`` are debconf's. Raises MissingDependency, or ResourceFailed with apt's words.

    No service is started: a world's servers are its own. Of several processes one installs at a time.
    """
    if all(map(installed, packages)):
        return
    with alone(cache_place("packages"), progress), _services_kept_down():
        absent = [name for name in packages if not installed(name)]
        if not absent:
            return
        _check_may_install(absent, world)
        for question, answer in (answers or {}).items():
            line = f"{absent[0]} {question} {answer}\n"
            subprocess.run(["debconf-set-selections"], input=line, text=True, check=True, capture_output=True)
        try:
            _fetch(absent, progress, world)
        except ResourceFailed:  # lists that are too old lead to what is gone
            _read_lists(progress, world)
            _fetch(absent, progress, world)


def _fetch(absent: Sequence[str], progress: Progress, world: str) -> None:
    command = ["apt-get", "-y", "--no-install-recommends", "-o", f"DPkg::Lock::Timeout={_LOCK_S}", "install", *absent]
    done = 0

    def says(line: str) -> tuple[float, str] | None:
        nonlocal done
        done += line.startswith(("Get:", "Unpacking ", "Setting up "))
        return min(0.99, done / (done + 100)), f"installing {', '.join(absent)}"

    run_child(command, progress, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, world=world, says=says)


def _read_lists(progress: Progress, world: str) -> None:
    run_child(["apt-get", "-qq", "update"], progress, os.environ, world=world)


def _quietly(fraction: float, text: str) -> None:
    pass


def may_install() -> bool:
    """Whether this user may, and the machine is one of Debian's kind."""
    return os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get") is not None


def _check_may_install(absent: Sequence[str], world: str) -> None:
    if may_install():
        return
    raise MissingDependency(
        f"the {world} needs Debian's packages {', '.join(absent)}, which are not installed",
        hint=f"As root: apt-get install --no-install-recommends {' '.join(absent)}",
    )


def installed(package: str) -> str:
    """Its version; empty where it is not installed whole."""
    status, _, version = _ask("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package).partition(
        " "
    )
    return version if status == "installed" else ""


def _ask(*command: str) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _candidate(package: str) -> str:
    for line in _ask("apt-cache", "policy", package).splitlines():
        name, _, version = line.strip().partition(": ")
        if name == "Candidate" and version != "(none)":
            return version
    return ""


@contextmanager
def _services_kept_down() -> Iterator[None]:
    if _NO_SERVICES.exists():  # somebody has decided already
        yield
        return
    _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
    _NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        _NO_SERVICES.unlink(missing_ok=True)
