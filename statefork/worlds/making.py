"""What the builds of all worlds share: a cache by the recipe's digest, a child that reports, packages, a dump.

A world's bases are made in a child process, so that an engine which needs them does not become the application.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from statefork.engine.errors import ResourceFailed

Progress = Callable[[float, str], None]
"""Called with a fraction from 0 to 1 and a text that says what is being done. What it raises ends the building."""

SILENCE_S = 0.25  # after this long without news of the child, progress is told once more


def digest_of(files: Iterable[Path], versions: Mapping[str, str]) -> str:
    """SHA-256 (hex) over files, by their names, and the versions of packages."""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for file in files:
        digest.update(b"\0" + file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@contextmanager
def whole(directory: Path) -> Iterator[Path]:
    """A directory to build in; it takes the place of ``directory`` when all is done, else nothing is left of it."""
    partial = directory.with_name(f"{directory.name}.building-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cache_place(name: str, root: Path | None = None) -> Path:
    """Where a base of that name is kept: under ``root``, else in the user's cache directory."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (root or home / "statefork" / "worlds") / name


def in_cache(target: Path, make: Callable[[Path, Progress], None], progress: Progress) -> Path:
    """The base at ``target``, made when it is not there yet; who comes meanwhile waits for it."""
    if not target.is_dir():
        with alone(target, progress):
            if not target.is_dir():
                make(target, progress)
    return target


@contextmanager
def alone(target: Path, progress: Progress) -> Iterator[None]:
    """One process makes what is to be at ``target``, others wait for it. The lock ends with its process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(0.0, "waiting for another process that does the same")
                time.sleep(SILENCE_S)
        yield


def within(progress: Progress, begin: float, end: float) -> Progress:
    """``progress`` for a part of the whole."""
    return lambda fraction, text: progress(begin + (end - begin) * fraction, text)


def run_child(
    command: Sequence[str | Path],
    progress: Progress,
    environ: Mapping[str, str],
    *,
    world: str,
    directory: Path | None = None,
    says: Callable[[str], tuple[float, str] | None] = lambda line: None,
) -> None:
    """Run a child to its end. A line of its output that begins with @ is ``[fraction, text]`` in JSON.

    ``says`` may make progress of other lines. Raises ResourceFailed with the last lines of what it said.
    """
    said: deque[str] = deque(maxlen=20)
    fraction, text = 0.0, "starting"
    with subprocess.Popen(
        command,
        env=dict(environ),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as child:
        try:
            for line in _lines(child):
                if line.startswith("@"):
                    fraction, text = json.loads(line[1:])
                elif line:
                    said.append(line)
                    fraction, text = says(line) or (fraction, text)
                progress(fraction, text)  # also in silence: it may raise, and then the child ends at once
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ResourceFailed(
            f"building the {world} ended with status {child.returncode}: {' / '.join(said)}", resource=world
        )


def _lines(child: subprocess.Popen[bytes]) -> Iterator[str]:
    """What the child says, line by line; an empty one whenever it has been silent for a while."""
    assert child.stdout is not None
    file, rest = child.stdout.fileno(), b""
    while True:
        readable, _, _ = select.select([file], [], [], SILENCE_S)
        if not readable:
            yield ""
            continue
        data = os.read(file, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    yield rest.decode(errors="replace")
