"""Makes the wiki's base: ``wiki.sql``, ``media/`` and ``site/``.

MediaWiki is installed as Debian packages it where that is allowed; else it must be there. Its own installer makes the
tables, a script of ours (``seed.php``) users and pages. Tokens and salts are chance, so that two builds of one recipe
hold the same pages, but are not the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from statefork.adapters.resources.postgres.connecting import Address
from statefork.worlds.databases import dump, scratch_database
from statefork.worlds.making import Progress, cache_place, digest_of, in_cache, run_child, whole, within
from statefork.worlds.packages import install, versions

PACKAGES = (
    "mediawiki",
    "nginx-light",
    *("php-fpm", "php-cli", "php-pgsql", "php-apcu", "php-intl", "php-mbstring", "php-xml", "php-gd"),
)
BASE = "wiki.sql"
HERE = Path(__file__).resolve().parent
_RECIPE = ("build.py", "seed.php", "site/LocalSettings.php", "site/site.toml")
_ROOT = Path("/usr/share/mediawiki")


def recipe_digest() -> str:
    """SHA-256 (hex) over everything that decides the base's content. Raises MissingDependency."""
    return digest_of((HERE / name for name in _RECIPE), versions(PACKAGES, "wiki"))


def build(directory: Path, progress: Progress) -> None:
    """Build the base into ``directory``, which is absent or empty; on failure nothing is left in it.

    Takes some 40 s on two cores, and as long again when the packages must be installed. Raises MissingDependency, or
    ResourceFailed with the last lines of what was said.
    """
    install(PACKAGES, within(progress, 0.0, 0.4), world="wiki")
    with whole(directory) as partial, scratch_database(partial, "wiki") as address:
        (partial / "media").mkdir()
        shutil.copytree(HERE / "site", partial / "site")
        (partial / "site" / "messages").mkdir()
        run_child(_installer(address, partial), within(progress, 0.4, 0.6), os.environ, world="wiki", directory=_ROOT)
        environ = {
            **os.environ,
            "MW_CONFIG_FILE": str(partial / "site" / "LocalSettings.php"),
            "STATEFORK_DATABASE": json.dumps(dict(address)),
            "STATEFORK_BASE": str(partial),
            "TZ": "UTC",
        }
        commands = (
            ([_ROOT / "maintenance" / "rebuildLocalisationCache.php", "--lang=en", "--force"], 0.6, 0.65),
            ([HERE / "seed.php"], 0.65, 0.97),
        )
        for command, begin, end in commands:
            run_child(["php", *command], within(progress, begin, end), environ, world="wiki", directory=_ROOT)
        dump(address, partial / BASE, lambda: progress(0.98, "dumping the database"))
    progress(1.0, "the wiki's base is built")


def _installer(address: Address, partial: Path) -> list[str | Path]:
    """Its own settings file is not needed: it goes with the server's directory."""
    settings = partial / "server" / "settings"
    settings.mkdir()
    told = {
        "confpath": settings,
        "dbtype": "postgres",
        "dbserver": address["host"],
        "dbport": address["port"],
        "dbname": address["dbname"],
        "dbuser": address["user"],
        "dbpass": address["password"],
        "installdbuser": address["user"],
        "installdbpass": address["password"],
        "server": "http://wiki.example",
        "scriptpath": "",
        "lang": "en",
        "pass": "admin-of-the-wiki",
        "skins": "Vector",
    }
    options = [f"--{name}={value}" for name, value in told.items()]
    return ["php", _ROOT / "maintenance" / "install.php", *options, "Wiki", "Admin"]


def place(root: Path | None = None) -> Path:
    """Where the base of the present recipe is, or will be: under ``root``, else in the user's cache directory."""
    return cache_place(f"wiki-{recipe_digest()[:16]}", root)


def cached(progress: Progress, root: Path | None = None) -> Path:
    """The base of the present recipe at its place, built when it is not there yet."""
    return in_cache(place(root), build, progress)
