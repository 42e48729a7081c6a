"""What says which server of our own is to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from statefork.engine.runtimes import marks


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Which server to run, and where."""

    name: str
    state: Path
    journal: str
    place: Path  # below the state directory
    settings: Mapping[str, str]
    reserve: bool = False  # whether some room on its disk is set aside for it
    programs: str = ""  # as the option of that name
    accelerate: bool = False  # likewise
    log: Path | None = None  # else among the logs of the state directory
    initdb: tuple[str, ...] = ()  # further options

    @property
    def marks(self) -> dict[str, str]:
        """What the environment of its processes holds."""
        return marks(self.state, self.journal, self.name)
