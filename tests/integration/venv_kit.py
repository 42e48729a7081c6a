"""Third-party packages whose pins clash with ours: each set in a virtual environment of its own, made once.

What is in it is said, completely, by a file of pinned requirements beside the tests. It lies in the user's cache under
the digest of these lines and the Python version; statefork and the packages of this process are importable there, after
its own.
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
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).resolve().parent.parent.parent
REQUIREMENTS = Path(__file__).parent / "venvs"
INDEX_HOST = ("pypi.org", 443)
_MADE = "made"
_PATIENCE_S = 10.0


def python_with(name: str) -> Path:
    """The interpreter of the environment that ``venvs/<name>.txt`` describes. Skips where PyPI can't be reached."""
    lines = (REQUIREMENTS / f"{name}.txt").read_text()
    version = ".".join(map(str, sys.version_info[:3]))
    digest = hashlib.sha256(f"{version}\n{ROOT}\n{sys.prefix}\n{lines}".encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statefork" / "venvs"
    home.mkdir(parents=True, exist_ok=True)
    place = home / f"{name}-{digest}"
    with (home / f"{name}-{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / _MADE).exists():
            shutil.rmtree(place, ignore_errors=True)
            _make(place, REQUIREMENTS / f"{name}.txt")
            (place / _MADE).touch()
    return place / "bin" / "python"


def _make(place: Path, requirements: Path) -> None:
    python = place / "bin" / "python"
    _run(uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(place))
    _run(uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--python", str(python), "-r", str(requirements))
    packages = next((place / "lib").glob("python*/site-packages"))
    (packages / "statefork.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not _reachable():
        pytest.skip(f"{INDEX_HOST[0]} can't be reached: {done.stderr.strip()[-500:]}")
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def _reachable() -> bool:
    try:
        with socket.create_connection(INDEX_HOST, _PATIENCE_S):
            return True
    except OSError:
        return False
