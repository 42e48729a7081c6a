"""When two writes can't be told apart by time stamps, and how long to wait until they can.

File systems stamp files with a clock that moves in ticks (some milliseconds), unless the kernel gives a finer time to a
file whose stamp somebody has read (Linux 6.13 and later, on some file systems). Within one tick a second write of the
same size leaves no trace. So stamps count only when they were read at least a tick after the newest of them.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from pathlib import Path

_TRIALS = 20
_TICK_NS_MAX = 12_000_000  # a tick is 1 to 10 ms


def settle_ticks(trial: Path, newest_ns: int) -> bool:
    """True if stamps just read count, ``newest_ns`` being the newest; else wait, and they are to be read again."""
    if _fine_stamps(str(trial)):
        return True
    age_ns = time.time_ns() - newest_ns
    if age_ns > _TICK_NS_MAX or age_ns < 0:  # a stamp from the future says nothing: the clock was set back
        return True
    time.sleep((_TICK_NS_MAX - age_ns) / 1e9)
    return False


@functools.lru_cache(maxsize=64)
def _fine_stamps(directory: str) -> bool:
    """Whether a write after a look always gets another stamp there; found out by trying."""
    trial = Path(directory) / f".ticks-{secrets.token_hex(4)}"
    try:
        with trial.open("wb", buffering=0) as file:
            seen = set()
            for _ in range(_TRIALS):
                file.write(b"x")
                os.ftruncate(file.fileno(), 0)
                seen.add(trial.stat().st_ctime_ns)
    except OSError:
        return False
    finally:
        trial.unlink(missing_ok=True)
    return len(seen) == _TRIALS
