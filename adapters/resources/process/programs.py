"""Whether the program that a contract names is there and can be run: seen before anything is begun."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from statefork.adapters.resources.process.options import Options, filled, inherited


def why_not(options: Options, base_dir: Path | None) -> str:
    """Why the command's program can't be run; empty where it can, or where that can't be known yet.

    ``base_dir``: the directory to which the contract's paths are relative; None: it is not there yet.
    """
    data = base_dir / options.base if base_dir is not None and options.base else None
    known = {"python": sys.executable} | ({"data": str(data)} if data is not None else {})
    directory = base_dir / options.path if base_dir is not None and options.path else data
    return why_not_run(filled(options.words()[0], known), options.environment, directory)


def why_not_run(program: str, environment: Mapping[str, str], directory: Path | None) -> str:
    """The same of any program, under what a contract adds to the environment. ``directory``: where it would be run."""
    if "{" in program:
        return ""
    if "/" not in program:
        path = environment.get("PATH", inherited().get("PATH", os.defpath))
        if "{" in path or shutil.which(program, path=path):
            return ""
        where = f"the contract's PATH ({path})" if "PATH" in environment else "the engine's PATH"
        return f"there is no program {program!r} in {where}"
    if not Path(program).is_absolute():
        if directory is None:
            return ""
        return _told(directory / program)
    return _told(Path(program))


def _told(program: Path) -> str:
    try:
        if program.is_dir():
            return f"{str(program)!r} is a directory, and no program"
        if not program.exists():
            return f"there is no program {str(program)!r}"
    except OSError as error:
        return f"the program {str(program)!r} can't be seen: {error.strerror}"
    return "" if os.access(program, os.X_OK) else f"{str(program)!r} may not be executed (chmod +x)"
