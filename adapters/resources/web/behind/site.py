"""The description of a site behind the server: a TOML file that a contract's ``settings`` names."""

from __future__ import annotations

import shutil
from pathlib import Path
from string import Template

import msgspec

from statefork.adapters.resources.web.stack import Setup, described
from statefork.engine.errors import MissingDependency


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be served. ``$site`` in a value stands for the directory of the description."""

    root: str  # where the packaged application lies, untouched
    application: str = ""  # beside the description: rack: the Ruby file whose value it is; node: the file that is run
    recorded: str = ""  # node: beside the description: what the application asks of its database when it starts
    front: str = "index.php"  # php-fpm: what answers a path that is no file
    scripts: dict[str, str] = {}  # php-fpm: prefix of a path to the script that answers it
    stores: tuple[str, ...] = ("database",)  # the kinds of store that it needs
    environment: dict[str, str] = {}
    php: dict[str, str] = {}  # php-fpm: php.ini's values, which the application can't change
    install: str = ""  # what to do when the programs or the root are missing


def read_site(setup: Setup) -> tuple[Site, Path]:
    """The description and its directory. Raises ValueError, or MissingDependency when the application is not there."""
    file = described(setup).resolve()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"settings = {setup.settings!r}: {error}") from None
    try:
        site = msgspec.toml.decode(Template(text).safe_substitute(site=str(file.parent)), type=Site)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file}: {error}") from None
    if not Path(site.root).is_dir():
        raise MissingDependency(f"there is no {site.root}", hint=site.install)
    return site, file.parent


def find_program(*names: str, hint: str) -> str:
    """The first of the programs that is there; also those for administrators. Raises MissingDependency."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        if found:
            return found
    raise MissingDependency(f"the program {names[0]!r} is not installed", hint=hint)
