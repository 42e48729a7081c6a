"""./dev: what lasts says that it does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

DEV = Path(__file__).parents[2] / "dev"


def lasting() -> str:
    """The function of that name."""
    return "lasting() {" + DEV.read_text().partition("\nlasting() {")[2].partition("\n}\n")[0] + "\n}"


def test_what_lasts_is_told_again_until_it_ends_with_its_own_status(tmp_path: Path) -> None:
    script = f"""
        set -euo pipefail
        still_s=0.05
        say() {{ echo "$*" | tee -a told >&2; }}
        until_told() {{ until [ -s told ]; do :; done; return 3; }}
        {lasting()}
        lasting nothing true
        lasting installing until_told || echo "status $?"
        lasting "what is killed" bash -c 'kill -9 $PPID'
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-9, "status 3\n")
    first = done.stderr.splitlines()[0]  # and the teller is gone: the pipe came to its end
    assert re.fullmatch(r"  still installing, 0:0\d", first)
