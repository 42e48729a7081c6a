"""What a contract may say of a ``shell`` resource."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from statefork.adapters.resources.files.probe import Choice
from statefork.adapters.resources.process.options import OWN_USER
from statefork.engine.options import BadOptions

AS_FAR_AS_POSSIBLE, ENGINES = "auto", "engine"
OUTPUT_BYTES_MAX = 10 << 20


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tree, and who works in it."""

    base: str = ""  # the directory that the tree begins as, relative to the contract; empty = it begins empty
    user: str = AS_FAR_AS_POSSIBLE  # "own", an account, or "engine"; "auto" = own where the engine is root
    network: Literal["machine", "own"] = "machine"  # own: no other port is there, and no way out
    environment: dict[str, str] = {}
    processes_max: int = 0  # of one command and all that it starts; 0 = as many as the machine allows
    output_bytes_max: int = OUTPUT_BYTES_MAX  # of each of a command's two outputs; what comes after is left out
    max_bytes: int = 0
    survives: Literal["process", "os"] = "process"
    strategy: Choice = "auto"

    def __post_init__(self) -> None:
        counted = {"processes_max": self.processes_max, "max_bytes": self.max_bytes}
        faults = [(key, "must not be less than 0") for key, value in counted.items() if value < 0]
        if self.output_bytes_max < 1:
            faults.append(("output_bytes_max", "must be at least 1"))
        if not self.user:
            faults.append(("user", "must be 'auto', 'own', 'engine' or an account of this machine"))
        if faults:
            raise BadOptions(*faults)

    def account(self) -> str:
        """The user as the accounts know it; empty for the engine's."""
        if self.user == AS_FAR_AS_POSSIBLE:
            return OWN_USER if os.geteuid() == 0 else ""
        return "" if self.user == ENGINES else self.user
