"""What building a tree takes, and what keeping a written one takes: measured here, so that the cheaper is chosen.

``resources/<name>/costs.json`` holds the last measurements, for the next engine and for ``statefork doctor``.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from statefork.adapters.resources.derived.options import How
from statefork.adapters.resources.ledger import write_whole

COSTS_NAME = "costs.json"
KEPT_MAX = 9  # measurements of each kind; their median counts

Kind = Literal["rebuild", "copy"]


class Measured(msgspec.Struct, kw_only=True):
    """Milliseconds, the latest last."""

    rebuild_ms: list[float] = []
    copy_ms: list[float] = []


class Costs:
    """The measurements of one resource. Its methods block a little: call them from a worker thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / COSTS_NAME
        self._lock = threading.Lock()
        self._measured: Measured | None = None

    def note(self, kind: Kind, seconds: float) -> None:
        """Take one measurement in."""
        with self._lock:
            measured = self._read()
            values = measured.rebuild_ms if kind == "rebuild" else measured.copy_ms
            values.append(round(seconds * 1000, 2))
            del values[:-KEPT_MAX]
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(measured))

    def _read(self) -> Measured:
        if self._measured is None:
            self._measured = Measured()
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # measured anew where there is nothing to read
                self._measured = msgspec.json.decode(self._path.read_bytes(), type=Measured)
        return self._measured

    def cheaper(self) -> tuple[Kind, str]:
        """What to do with a tree that the application wrote to, and why. What was never measured is tried."""
        with self._lock:
            measured = self._read()
            if not measured.rebuild_ms:
                return "copy", "not measured yet: that is done by the first build and the first copy here"
            rebuild = median(measured.rebuild_ms)
            if not measured.copy_ms:
                return "copy", f"a rebuild took {rebuild:.4g} ms; keeping what was written is not measured yet"
            copy = median(measured.copy_ms)
        counts = f"medians of {len(measured.rebuild_ms)} and {len(measured.copy_ms)} here"
        told = f"a rebuild took {rebuild:.4g} ms, keeping what was written {copy:.4g} ms ({counts})"
        return ("rebuild" if rebuild < copy else "copy"), told

    def choice(self, how: How) -> tuple[Kind, str]:
        """The same, where the contract may have decided."""
        kind, why = self.cheaper()
        return (kind, why) if how == "auto" else (how, f"the contract says so; {why}")
