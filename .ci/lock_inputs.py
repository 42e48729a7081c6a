"""What requirements.lock was made from: a checksum of the dependencies that pyproject.toml asks for.

``./dev lock`` writes it into the lock's first line, ``tests/test_tidy.py`` compares.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"


def header() -> str:
    """The first line that the lock must have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [project["requires-python"], project["dependencies"], project["optional-dependencies"]]
    checksum = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return f"# Made by './dev lock'. Dependencies of pyproject.toml: sha256 {checksum}"


def write() -> None:
    """Put the line at the top of the lock, in place of the comments there."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    first = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    LOCK.write_text("\n".join([header(), *lines[first:], ""]), encoding="utf-8")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else print(header())
