"""Overlays without root, in a user namespace: where they can serve, and where they can't.

A mount made in a user namespace is seen by the processes in that namespace and by nobody else. An engine outside, and
the servers that it started, would look at an empty directory; so a namespace of a child is of no use to it, and an
engine with several threads can't enter one itself. What does work is an engine that was *started* inside one
(``unshare --user --map-root-user --mount statefork up …``): its children are inside too. Then the ordinary overlay
strategy runs with the attributes that a namespace may set (``userxattr``); renaming a directory of the base gives EXDEV
there, as between file systems, and programs such as ``mv`` copy instead.

This module finds out whether starting so would work, for ``statefork doctor``.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

from statefork.adapters.resources.ledger import remove_tree

_TRIAL_S_MAX = 5.0
_SCRIPT = """
cd "$1" && mount -t overlay overlay -o lowerdir=base,upperdir=up,workdir=work,userxattr view &&
rm view/file && test ! -e view/file
"""


def namespaces_allowed(directory: Path) -> bool:
    """Whether this user may make a user namespace and mount overlays of a directory there; tried in a child process."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    trial = directory / f".userns-{secrets.token_hex(6)}"
    try:
        for name in ("base", "up", "work", "view"):
            (trial / name).mkdir(parents=True)
        (trial / "base" / "file").write_text("below")
        command = [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", _SCRIPT, "sh", str(trial)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        remove_tree(trial)
    return done.returncode == 0
