"""Redmine for one environment alone: a command for the adapter ``process`` (see ``tracker-private.toml``).

::

    python -m statefork.worlds.tracker.private      in the directory of site.toml

It becomes ruby: nothing of Python stays. What it listens at and where its stores are is told by variables: PORT,
TRACKER_MEDIA, and libpq's own for the database.
"""

from __future__ import annotations

import os
from pathlib import Path

from statefork.adapters.resources.web.behind.site import find_program, read_site
from statefork.adapters.resources.web.stack import Setup

_THREADS = "4"  # requests of one environment at one time
_PROGRAM = Path(__file__).with_name("private.rb")


def main() -> None:
    """Become the server. Raises MissingDependency, ValueError."""
    site, _ = read_site(Setup(settings="site.toml"))
    ruby = find_program("ruby", hint=site.install)
    environment = {"MALLOC_ARENA_MAX": "2", "TRACKER_THREADS": _THREADS, **os.environ, **site.environment}
    os.chdir(site.root)
    os.execve(ruby, [ruby, str(_PROGRAM)], environment)


if __name__ == "__main__":
    main()
