"""Becomes a program of PostgreSQL: ``python -I launch.py PLAN``. Uses nothing but the standard library.

Started as root it gives up root first. Where the other user could not get to the program's files (a state directory
below ``/root``, say) they are shown to it at a place of its own, in a mount namespace that ends with it; no mode of
anybody's directory is changed.

A server is tethered to its standard input, a pipe that only the engine holds: when that closes, however the engine
ended, the server shuts down at once. Its children lead sessions of their own, so that killing its process group would
leave them behind; hence it is told to quit, and killed only if it does not. A line on the pipe says that it has ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from pathlib import Path

_TETHER = (
    "exec 3<&0 ; "  # what runs in the background gets another standard input
    "( ( trap '' INT TERM QUIT ; read _ || { kill -QUIT 0 ; sleep 5 ; kill -KILL 0 ; } ) <&3 >/dev/null 2>&1 & ) ; "
    'exec "$@" </dev/null 3<&-'
)
_CLONE_NEWNS = 0x20000
_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2
_PLACES = ("/mnt", "/media", "/srv")
_SYSTEM = ("/etc", "/lib", "/opt", "/usr")


def main() -> None:
    """Carry out the plan in the first argument: command, directories to show, user, tether, what to preload."""
    plan = json.loads(sys.argv[1])
    shown: dict[str, str] = plan["shown"]  # what stands for a directory in the command, to the directory
    if plan["hidden"]:
        shown = _show(shown)
    if plan["uid"] is not None:
        os.setgroups([])
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    os.chdir("/")
    command = [_resolved(word, shown) for word in plan["command"]]
    if plan["tethered"]:
        command = ["/bin/sh", "-c", _TETHER, "sh", *command]
    environment = dict(os.environ)
    if plan["preload"]:
        environment["LD_PRELOAD"] = _resolved(plan["preload"], shown)
    os.execve(command[0], command, environment)


def _resolved(word: str, shown: dict[str, str]) -> str:
    for name, directory in shown.items():
        word = word.replace(f"{{{name}}}", directory)
    return word


def _show(directories: dict[str, str]) -> dict[str, str]:
    """Bind each directory below a place that everybody may enter, seen by this process and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: str | None, flags: int) -> None:
        if libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, None):
            raise _failed(f"mount {source} at {target}")

    place = next(
        place
        for place in _PLACES
        if Path(place).is_dir() and not any(Path(d).is_relative_to(place) for d in directories.values())
    )
    if libc.unshare(_CLONE_NEWNS):
        raise _failed("make a mount namespace")
    mount("none", "/", None, _MS_REC | _MS_SLAVE)
    mount("statefork", place, "tmpfs", 0)
    found = {}
    for name, directory in directories.items():
        target = Path(place, name)
        target.mkdir(mode=0o755)
        mount(directory, str(target), None, _MS_BIND)
        found[name] = str(target)
    _let_go(libc, place, *directories.values())
    return found


def _let_go(libc: ctypes.CDLL, *needed: str) -> None:
    """Forget others' stores and trees: a mount that is seen here, too, would live on when it is taken away there."""
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        kind, source = fields[fields.index("-") + 1 :][:2]
        if kind != "overlay" and not source.startswith("/dev/loop"):
            continue
        near = any(Path(path).is_relative_to(point) or Path(point).is_relative_to(path) for path in needed)
        if not near and not point.startswith(_SYSTEM):
            libc.umount2(os.fsencode(point), _MNT_DETACH)


def _failed(what: str) -> SystemExit:
    reason = os.strerror(ctypes.get_errno())
    return SystemExit(
        f"The server's user may not enter its directories, and root could not {what} ({reason}). "
        "Put the state directory, and statefork's installation, where every user may enter."
    )


if __name__ == "__main__":
    main()
