"""Prove that statefork is imported from where it was installed, and that every module of the repository is there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import statefork
import statefork.adapters
import statefork.engine
import statefork.journal
import statefork.replay

ROOMS = ("adapters", "engine", "journal", "replay")


def main(repository: Path) -> None:
    """Compare the installed files with those that the repository tracks."""
    home = Path(sysconfig.get_path("purelib"), "statefork").resolve()
    for package in (statefork, statefork.adapters, statefork.engine, statefork.journal, statefork.replay):
        found = Path(str(package.__file__)).resolve()
        assert found.is_relative_to(home), f"{package.__name__} was imported from {found}, not from the installed wheel"
    listed = subprocess.run(
        ["git", "-C", str(repository), "ls-files", "-z", "statefork", *ROOMS],
        check=True,
        capture_output=True,
        text=True,
    )
    links = {f"statefork/{room}" for room in ROOMS}
    tracked = {name.removeprefix("statefork/") for name in listed.stdout.split("\0") if name and name not in links}
    missing = sorted(name for name in tracked if not (home / name).is_file())
    assert not missing, f"the wheel lacks {', '.join(missing)}"
    print(f"The wheel has all {len(tracked)} files, and statefork is imported from it.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
