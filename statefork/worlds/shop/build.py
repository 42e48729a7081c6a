"""Makes the shop's immutable base: ``shop.sqlite3``, ``media/`` and ``search/``.

The work is done by a child process (``python -m statefork.worlds.shop.build DIRECTORY``), so that an engine which needs
a base does not become a Django process, and so that hash seed and clock can be fixed: the same recipe gives the same
files, byte for byte.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from statefork.worlds import making
from statefork.worlds.making import Progress, cache_place, in_cache, whole

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
    return making.digest_of((HERE / name for name in files), versions)


def build(directory: Path, progress: Progress) -> None:
    """Build the base into ``directory``, which is absent or empty; on failure nothing is left in it.

    Takes some 20 s on two cores. Raises ResourceFailed with the last lines of what the child process said.
    """
    with whole(directory) as partial:
        run_child(partial, progress, {"DJANGO_SETTINGS_MODULE": "statefork.worlds.shop.settings"})


def place(root: Path | None = None) -> Path:
    """Where the base of the present recipe is, or will be: under ``root``, else in the user's cache directory."""
    return cache_place(f"shop-{recipe_digest()[:16]}", root)


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe at its place, built when it is not there yet."""
    return in_cache(place(root), build, progress)


def run_child(directory: Path, progress: Progress, environ: Mapping[str, str]) -> None:
    """The child's work on a directory; ``environ`` names its settings. Raises ResourceFailed."""
    environ = {
        **os.environ,
        "STATEFORK_SHOP_BASE": str(directory),
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
        **environ,
    }
    making.run_child([sys.executable, "-m", __name__, str(directory)], progress, environ, world="shop")


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
