"""What a killed engine left on a server: databases and roles that no record names, directories that no database has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from statefork.adapters.resources.ledger import TRIALS
from statefork.adapters.resources.postgres.cloning import INVALID, Cloner
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.making import Making
from statefork.adapters.resources.postgres.naming import Names
from statefork.adapters.resources.postgres.together import each


def databases(admin: Admin, names: Names) -> dict[str, bool]:
    """The databases of this journal and resource, and whether each is whole."""
    found = admin.rows("SELECT datname, datconnlimit FROM pg_database")
    return {name: limit != INVALID for name, limit in found if names.is_ours(name)}


def sweep(admin: Admin, names: Names, cloner: Cloner, needed: Callable[[str], bool]) -> list[str]:
    """Remove what no record names, and what is broken whoever names it; the names of what went."""
    there = databases(admin, names)
    gone = [name for name, whole in there.items() if not (whole and needed(name))]
    each(gone, cloner.drop)
    for (role,) in admin.rows("SELECT rolname FROM pg_roles"):
        if names.is_ours(role) and (role not in there or role in gone):
            cloner.drop_role(role)
    return gone


def remove_orphan_directories(admin: Admin, data: Path, making: Making) -> list[str]:
    """Remove the directories of databases that a backend was making or removing when it was killed.

    Only below a server of our own, and only while no database is being made: its directory is there before its row is.
    """
    gone: list[str] = []

    def look() -> None:
        for path in (data / "base").iterdir():
            if path.name.startswith(TRIALS):
                path.unlink(missing_ok=True)
        directories = {path.name for path in (data / "base").iterdir() if path.name.isdecimal()}
        known = {str(oid) for (oid,) in admin.rows("SELECT oid FROM pg_database")}
        for name in sorted(directories - known):
            shutil.rmtree(data / "base" / name, ignore_errors=True)
            gone.append(name)

    making.none(look)
    return gone


def remove_broken(admin: Admin, names: Names, cloner: Cloner) -> None:
    """Finish removals that were interrupted."""
    each((name for name, whole in databases(admin, names).items() if not whole), cloner.drop)
