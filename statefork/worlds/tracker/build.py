"""Makes the tracker's base: ``tracker.sql``, ``media/`` and ``site/``.

Redmine is installed as Debian packages it where that is allowed; else it must be there. It migrates and seeds itself in
Ruby processes of its own (``seed.rb``), with a clock that stands still and chance from one seed.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from statefork.worlds.databases import dump, scratch_database
from statefork.worlds.making import Progress, cache_place, digest_of, in_cache, run_child, whole, within
from statefork.worlds.packages import install, versions

PACKAGES = ("redmine", "redmine-pgsql", "ruby-pg", "puma")
BASE = "tracker.sql"
HERE = Path(__file__).resolve().parent
_ANSWERS = {"redmine/instances/default/dbconfig-install": "boolean false"}  # it needs no database of the system's
_RECIPE = ("build.py", "seed.rb", "site/redmine.rb", "site/site.toml")
_ROOT = Path("/usr/share/redmine")


def recipe_digest() -> str:
    """SHA-256 (hex) over everything that decides the base's content. Raises MissingDependency."""
    return digest_of((HERE / name for name in _RECIPE), versions(PACKAGES, "tracker"))


def build(directory: Path, progress: Progress) -> None:
    """Build the base into ``directory``, which is absent or empty; on failure nothing is left in it.

    Takes some 40 s on two cores, and as long again when the packages must be installed. Raises MissingDependency, or
    ResourceFailed with the last lines of what was said.
    """
    install(PACKAGES, within(progress, 0.0, 0.4), world="tracker", answers=_ANSWERS)
    with whole(directory) as partial, scratch_database(partial, "tracker") as address:
        (partial / "media").mkdir()
        shutil.copytree(HERE / "site", partial / "site")
        environ = {
            **os.environ,
            "RAILS_ENV": "production",
            "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing",  # the one that is meant is told beside it
            "SECRET_KEY_BASE": "0" * 64,
            "STATEFORK_DATABASE": json.dumps(dict(address)),
            "STATEFORK_BASE": str(partial),
            "TZ": "UTC",
        }
        for part, begin, end in (("tables", 0.4, 0.7), ("rows", 0.7, 0.97)):
            command: list[str | Path] = ["ruby", "--backtrace-limit=4", HERE / "seed.rb", part]
            run_child(command, within(progress, begin, end), environ, world="tracker", directory=_ROOT)
        dump(address, partial / BASE, lambda: progress(0.98, "dumping the database"))
    progress(1.0, "the tracker's base is built")


def place(root: Path | None = None) -> Path:
    """Where the base of the present recipe is, or will be: under ``root``, else in the user's cache directory."""
    return cache_place(f"tracker-{recipe_digest()[:16]}", root)


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe at its place, built when it is not there yet."""
    return in_cache(place(root), build, progress)
