"""Virtual environments of their own for third-party packages whose pins clash with ours.

The pins are a committed text file, all of them installed without what they ask for themselves; whatever else is needed
comes from the environment that runs the tests, statefork included. One is made once for each content of the file, in
the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS_MAX = 600
INDEX_HOST = ("pypi.org", 443)
_MADE = "made"
_PATIENCE_S = 10.0


def venv_of(requirements: Path) -> Path:
    """The Python of an environment with these packages; skips the test where they can't be fetched."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statefork" / "venvs"
    cache.mkdir(parents=True, exist_ok=True)
    made_of = f"{sys.executable}\n{sys.version}\n{ROOT}\n{requirements.read_text(encoding='utf-8')}"
    place = cache / f"{requirements.stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    with _alone(place.with_name(f"{place.name}.lock")):
        if not (place / _MADE).exists():
            shutil.rmtree(place, ignore_errors=True)
            _make(place, requirements)
    return place / "bin/python"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(place: Path, requirements: Path) -> None:
    _run("-m", "venv", "--without-pip", str(place))
    packages = next(place.glob("lib/python*/site-packages"))
    beside = (str(ROOT), sysconfig.get_paths()["purelib"])  # after the environment's own, which so come first
    (packages / "beside.pth").write_text("\n".join(beside) + "\n", encoding="utf-8")
    _run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), "-r", str(requirements))
    (place / _MADE).touch()


def _run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
    )
    if done.returncode and not _reachable():
        pytest.skip(f"{INDEX_HOST[0]} can't be reached: {done.stderr.strip()[-500:]}")
    assert done.returncode == 0, done.stderr


def _reachable() -> bool:
    try:
        with socket.create_connection(INDEX_HOST, _PATIENCE_S):
            return True
    except OSError:
        return False
