"""The opt-in accelerator of clones: ``accelerator.c``, compiled here by the user's own compiler and preloaded.

It changes how a server copies files and nothing else; where there is no compiler, or the server does not take it, work
goes on without. Whether it is there is not believed but looked at: the server's memory must have it mapped.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from statefork.engine.errors import MissingDependency

SOURCE = Path(__file__).with_name("accelerator.c")
_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_S_MAX = 60.0
_FLAGS = ("-O2", "-Wall", "-shared", "-fPIC")


def find_compiler() -> list[str]:
    """The command of the variable CC, else the first compiler on the path. Raises MissingDependency."""
    if sys.platform != "linux":
        raise MissingDependency("the accelerator is for Linux", hint="Leave out the option accelerate")
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise MissingDependency(
        f"there is no C compiler ({named[0] if named else ', '.join(_COMPILERS)})",
        hint="Install one (apt-get install gcc libc6-dev), or name it by the variable CC",
    )


def build(directory: Path) -> Path:
    """The library, compiled into a directory unless it is there. Raises MissingDependency, with what cc says."""
    library = directory / f"accelerator-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = find_compiler()
    partial = library.with_suffix(f".{secrets.token_hex(4)}.partial")
    try:
        done = subprocess.run(
            [*compiler, *_FLAGS, "-o", str(partial), str(SOURCE)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMPILE_S_MAX,
        )
        if done.returncode:
            raise MissingDependency(
                f"the accelerator could not be compiled by {compiler[0]}",
                hint="Headers may be missing (apt-get install libc6-dev linux-libc-dev). "
                f"It says:\n{done.stderr.strip()}",
            )
        partial.chmod(0o755)
        partial.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(f"the accelerator could not be compiled: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return library


class Accelerator:
    """Of one server: whether it was asked for, is there, and is used."""

    def __init__(self, place: Path, *, wanted: bool) -> None:
        self._place = place
        self._wanted = wanted
        self._library: Path | None = None
        self._used = False
        self._fault = ""

    def preload(self) -> str:
        """The library's name in the server's place, to be preloaded; nothing where there is none."""
        self._library, self._used, self._fault = None, False, ""
        if not self._wanted:
            return ""
        try:
            self._library = build(self._place)
        except MissingDependency as missing:
            self._fault = missing.message
            return ""
        return self._library.name

    def look(self, pid: int) -> None:
        """See whether the server has it."""
        if self._library is None:
            return
        try:
            mapped = Path(f"/proc/{pid}/maps").read_text()
        except OSError as error:
            self._fault = f"whether the server has it can't be seen ({error.strerror})"
            return
        self._used = self._library.name in mapped
        self._fault = "" if self._used else "the server did not load it"

    def __str__(self) -> str:
        """For ``Strategy.reason``."""
        if not self._wanted:
            return ""
        if self._fault:
            return f"not accelerated: {self._fault}"
        if self._used:
            return "accelerated: one FICLONE for each file, by a library that was compiled here and preloaded"
        try:
            return f"to be accelerated by a library that {find_compiler()[0]} compiles"
        except MissingDependency as missing:
            return f"not accelerated: {missing.message}"
