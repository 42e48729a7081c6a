"""Under which user a command runs: the engine's, an account of the machine, or one of the environment's own.

A user of its own is a number that no account has, so it needs no entry anywhere: files and processes of one environment
are out of reach for all others, and for the engine's secrets. Which number a branch has is told by who owns its tree.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from statefork.adapters.resources.process.options import OWN_USER
from statefork.engine.errors import ContractError, ResourceFailed

_FIRST_OWN, _OWN_USERS = 0x70000000, 0x0FFFFFFF  # beyond what systems give to people, services and containers


class Account(msgspec.Struct, frozen=True):
    """A user and group to become. ``alone``: nobody else is that user."""

    uid: int
    gid: int
    alone: bool = False


def account_of(resource: str, user: str) -> Account | None:
    """Who the contract means; None for the engine's user. Of ``own`` another one at each call.

    Raises ContractError for an account that is not there, ResourceFailed where only root may change users.
    """
    if not user:
        return None
    key = f"resources.{resource}.user"
    found = new_account() if user == OWN_USER else _known(key, user)
    if os.geteuid() != 0 and found.uid != os.geteuid():
        raise ResourceFailed(
            f"{resource}: only root can run a command as another user ({user})",
            hint="Run the engine as root, or take 'user' out of the contract",
            resource=resource,
        )
    return found


def _known(key: str, user: str) -> Account:
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        hint = "Name one, or 'own' for one of each environment's own"
        raise ContractError(f"{key}: there is no user {user!r} here", hint=hint, key=key) from None
    return Account(entry.pw_uid, entry.pw_gid)


def new_account() -> Account:
    """A number that no account of this machine has."""
    while True:
        number = _FIRST_OWN + secrets.randbelow(_OWN_USERS)
        try:
            pwd.getpwuid(number)
        except KeyError:
            return Account(number, number, alone=True)


def owner_of(tree: Path) -> Account:
    """To whom a branch's tree was given when it was opened."""
    status = tree.stat()
    own = _FIRST_OWN <= status.st_uid < _FIRST_OWN + _OWN_USERS
    return Account(status.st_uid, status.st_gid, alone=own)


def give(tree: Path, account: Account, pulse: Callable[[], None]) -> None:
    """Make a tree the account's, with all that is in it; links are given themselves, and not what they lead to."""
    for directory, folders, files in os.walk(tree):
        pulse()
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)
        for name in (*folders, *files):
            place = Path(directory, name)
            status = place.lstat()
            if status.st_uid != account.uid or status.st_gid != account.gid:
                os.chown(place, account.uid, account.gid, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
                    place.chmod(stat.S_IMODE(status.st_mode) & 0o777)  # nobody's program becomes another's


def check_reach(resource: str, account: Account, workplace: Path) -> None:
    """Raise ResourceFailed where the account may not get to its own directory."""
    for folder in reversed(workplace.parents):
        with contextlib.suppress(OSError):
            status = folder.stat()
            if not status.st_mode & stat.S_IXOTH and status.st_uid != account.uid:
                raise ResourceFailed(
                    f"{resource}: user {account.uid} may not enter {folder}, in which the command's files lie",
                    hint=f"chmod o+x {folder}, or choose a state directory that every user may enter",
                    resource=resource,
                )
