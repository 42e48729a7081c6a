"""What a contract may say of a ``derived`` resource."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from statefork.adapters.resources.files.probe import Choice

How = Literal["auto", "rebuild", "copy"]

_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tree is made, and from what."""

    command: list[str] = []  # the program that fills the tree; "{output}" and "{NAME}" of an input stand for paths
    call: str = ""  # instead: "module:function", called as function(output, inputs) in a process of its own
    inputs: list[str] = []  # resources of ``depends_on`` that it is made from: another version of one, another tree
    path: str = ""  # where it runs, with the modules of ``call``; relative to the contract
    environment: dict[str, str] = {}  # further environment variables
    revision: str = ""  # change it when the program itself has changed
    deadline_s: float = 60.0  # of one build
    how: How = "auto"  # what a generation keeps of a tree that the application wrote to; "auto": what costs less
    max_bytes: int = 0
    survives: Literal["process", "os"] = "process"
    strategy: Choice = "auto"

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.call):
            raise ValueError("exactly one of command and call says how the tree is made")
        if self.call and not _CALL.fullmatch(self.call):
            raise ValueError(f"call is written module:function, not {self.call!r}")
        if len(set(self.inputs)) != len(self.inputs):
            raise ValueError("inputs names a resource twice")
        if not 0 < self.deadline_s < 1e6:
            raise ValueError("deadline_s is a number of seconds above 0")
        if self.how == "rebuild" and not self.inputs:
            raise ValueError('how = "rebuild" needs inputs: without any, the tree would be the same for ever')

    @property
    def base(self) -> str:
        """No base is copied: the tree is built."""
        return ""

    def recipe(self) -> str:
        """SHA-256 (hex) of what decides the tree besides its inputs' versions."""
        facts = (self.command, self.call, sorted(self.inputs), sorted(self.environment.items()), self.path)
        return hashlib.sha256(msgspec.json.encode((*facts, self.revision))).hexdigest()
