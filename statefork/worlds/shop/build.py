"""Makes the shop's immutable base: ``shop.sqlite3``, ``media/`` and ``search/``.

The work is done by a child process (``python -m statefork.worlds.shop.build DIRECTORY``), so that an engine which needs
a base does not become a Django process, and so that hash seed and clock can be fixed: the same recipe gives the same
files, byte for byte.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from statefork.engine.errors import ResourceFailed

Progress = Callable[[float, str], None]
"""Called with a fraction from 0 to 1 and a text that says what is being done. What it raises ends the building."""

SILENCE_S = 0.25  # after this long without news of the child, progress is told once more
HERE = Path(__file__).resolve().parent

# Where one is missing this import fails with PackageNotFoundError: a ModuleNotFoundError that bears the name.
VERSIONS = {name: version(name) for name in ("django", "django-oscar", "django-haystack", "whoosh", "pillow")}

RECIPE = ("build.py", "catalogue.py", "pictures.py", "seed.py", "settings.py")
"""The files that decide what the base holds, besides the packages' versions."""


def recipe_digest() -> str:
    """SHA-256 (hex) over everything that decides the base's content: the same recipe, the same base."""
    return digest_of(RECIPE, VERSIONS)


def digest_of(files: tuple[str, ...], versions: Mapping[str, str]) -> str:
    """SHA-256 (hex) over some of this directory's files and some packages' versions."""
    digest = hashlib.sha256(json.dumps(versions, sort_keys=True).encode())
    for name in files:
        digest.update(b"\0" + name.encode() + b"\0" + (HERE / name).read_bytes())
    return digest.hexdigest()


def build(directory: Path, progress: Progress) -> None:
    """Build the base into ``directory``, which is absent or empty; on failure nothing is left in it.

    Takes some 20 s on two cores. Raises ResourceFailed with the last lines of what the child process said.
    """
    with whole(directory) as partial:
        run_child(partial, progress, {"DJANGO_SETTINGS_MODULE": "statefork.worlds.shop.settings"})


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe under ``root`` (the user's cache directory), built when it is not there yet."""
    return in_cache(f"shop-{recipe_digest()[:16]}", build, progress, root)


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


def in_cache(name: str, make: Callable[[Path, Progress], None], progress: Progress, root: Path | None) -> Path:
    """The base of that name under ``root`` (the user's cache directory), made when it is not there yet."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = (root or home / "statefork" / "worlds") / name
    if not target.is_dir():
        with _alone(target, progress):
            if not target.is_dir():
                make(target, progress)
    return target


@contextmanager
def _alone(target: Path, progress: Progress) -> Iterator[None]:
    """One process builds a base, others wait for it. The lock ends with its process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(0.0, "waiting for another process that builds the same base")
                time.sleep(SILENCE_S)
        yield


def run_child(directory: Path, progress: Progress, environ: Mapping[str, str]) -> None:
    """The child's work on a directory; ``environ`` names its settings. Raises ResourceFailed."""
    environ = {
        **os.environ,
        "STATEFORK_SHOP_BASE": str(directory),
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
        **environ,
    }
    command = [sys.executable, "-m", __name__, str(directory)]
    said: deque[str] = deque(maxlen=20)
    fraction, text = 0.0, "starting"
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        try:
            for line in _lines(child):
                if line.startswith("@"):
                    fraction, text = json.loads(line[1:])
                elif line:
                    said.append(line)
                progress(fraction, text)  # also in silence: it may raise, and then the child ends at once
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ResourceFailed(
            f"building the shop ended with status {child.returncode}: {' / '.join(said)}", resource="shop"
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
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    yield rest.decode(errors="replace")


def _report(fraction: float, text: str) -> None:
    print("@" + json.dumps([round(fraction, 3), text]), flush=True)


class _Migrations(io.StringIO):
    """Takes what ``migrate`` prints, and reports how far it is: some 160 migrations, each ended by an OK."""

    applied = 0

    def write(self, text: str) -> int:
        if "OK" in text:
            self.applied += 1
            if self.applied % 5 == 0:
                _report(min(0.02 + 0.43 * self.applied / 160, 0.45), "creating tables")
        return len(text)


def _build_here(directory: Path) -> None:
    """The child's part: one process, one clock that stands still, one seed."""
    import random
    from unittest.mock import patch

    import django
    from django.utils import timezone

    from statefork.worlds.shop.catalogue import OPENED

    # Before the models are imported: their fields' defaults take hold of the function itself.
    timezone.now = lambda: OPENED
    random.seed(0)  # Whoosh names its segments by it
    django.setup()
    from django.apps import apps
    from django.core.management import call_command

    from statefork.worlds.shop.seed import seed

    apps.get_app_config("haystack").signal_processor.teardown()  # the index is made once, at the end
    (directory / "media").mkdir()
    (directory / "search").mkdir()
    _report(0.02, "creating tables")
    call_command("migrate", verbosity=1, interactive=False, stdout=_Migrations())
    seed(lambda done, text: _report(0.45 + 0.35 * done, text))
    _report(0.82, "search index")
    # Whoosh writes the modification times of a segment's parts into it.
    with patch("whoosh.filedb.filestore.FileStorage.file_modified", return_value=OPENED.timestamp()):
        call_command("rebuild_index", verbosity=0, interactive=False, batch_size=1000)
    _report(0.95, "statistics and checkpoint")
    _finish(directory)
    _report(1.0, "the shop's base is built")


def _finish(directory: Path) -> None:
    """Leave the picture that Oscar shows where a product has none, and one plain file of SQLite with statistics."""
    from django.contrib.staticfiles import finders
    from django.db import connection

    missing = finders.find("oscar/img/image_not_found.jpg")
    shutil.copyfile(missing, directory / "media" / "image_not_found.jpg")
    if connection.vendor != "sqlite":  # whoever runs the server takes the database from there
        return
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("VACUUM")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


if __name__ == "__main__":
    _build_here(Path(sys.argv[1]))
