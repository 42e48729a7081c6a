"""What a contract may say of a ``process`` resource."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from statefork.adapters.resources.files.probe import Choice
from statefork.engine.options import BadOptions

OWN_USER = "own"
_READY = "'tcp', 'running', 'http /PATH' or 'line REGEX'"
_PLACE = re.compile(r"\{([a-z][a-z0-9_-]*(?:\.[a-z_]+)?)\}")
PLACES = ("data", "run", "host", "port", "env", "python")
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d+)?", re.IGNORECASE)


class Ready(msgspec.Struct, frozen=True):
    """How it is known that the command serves."""

    kind: str  # tcp | http | line | running
    what: str = ""  # a path, a regular expression


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One command, for each environment one."""

    command: str | list[str]  # run in the foreground; {data}, {port} and others stand for what is the environment's own
    base: str = ""  # the directory that {data} begins as, relative to the contract; empty = it begins empty
    host: str = ""  # what the agent sees, e.g. "tracker.example"; empty = no site of the world
    ready: str = "tcp"
    ready_s: float = 30.0
    settle_s: float = 0.1  # how long the tree must be left alone after that; at most ten times as long is waited
    stop_s: float = 5.0  # from the stop signal to the end by force
    cut: Literal["freeze", "restart"] = "freeze"  # how it is held still while it is sealed
    environment: dict[str, str] = {}
    path: str = ""  # where it runs, relative to the contract; empty = in {data}
    user: str = ""  # an account, or "own": one for each environment; empty = the engine's
    network: Literal["machine", "own"] = "machine"  # own: no other port is there, and no way out
    processes_max: int = 0  # of one environment; 0 = as many as the machine allows
    max_bytes: int = 0
    survives: Literal["process", "os"] = "process"
    strategy: Choice = "auto"

    def __post_init__(self) -> None:
        faults = []
        if not self.words():
            faults.append(("command", "must name a program"))
        if self.ready_of() is None:
            faults.append(("ready", f"must be {_READY}, not {self.ready!r}"))
        if self.host and not _HOST.fullmatch(self.host):
            faults.append(("host", f"{self.host!r} is no host name"))
        positive = {"ready_s": self.ready_s, "stop_s": self.stop_s}
        faults += [(key, "must be more than 0 seconds") for key, value in positive.items() if not value > 0]
        counted = {"settle_s": self.settle_s, "processes_max": self.processes_max, "max_bytes": self.max_bytes}
        faults += [(key, "must not be less than 0") for key, value in counted.items() if value < 0]
        if faults:
            raise BadOptions(*faults)

    def words(self) -> list[str]:
        """The program and its arguments; none where the text can't be split as a shell does."""
        if isinstance(self.command, list):
            return self.command if all(self.command[:1]) else []
        try:
            return shlex.split(self.command)
        except ValueError:
            return []

    def ready_of(self) -> Ready | None:
        """``ready`` understood; None where it is not."""
        kind, _, what = self.ready.partition(" ")
        if kind in ("tcp", "running") and not what:
            return Ready(kind)
        if kind == "http" and what.startswith("/"):
            return Ready(kind, what)
        if kind == "line" and what:
            try:
                re.compile(what)
            except re.error:
                return None
            return Ready(kind, what)
        return None

    def places(self) -> set[str]:
        """The names in braces that command and environment use."""
        return {name for text in (*self.words(), *self.environment.values()) for name in _PLACE.findall(text)}

    def needed(self) -> set[str]:
        """The resources whose addresses they use."""
        return {name.partition(".")[0] for name in self.places() if "." in name}


def filled(text: str, places: Mapping[str, Any]) -> str:
    """A text with what is in braces put in; what has no meaning stays as it is."""
    return _PLACE.sub(lambda found: str(places.get(found[1], found[0])), text)


def variables(places: Mapping[str, Any]) -> dict[str, str]:
    """The same as environment variables: PORT, and STATEFORK_DATA for {data}, STATEFORK_DB_NAME for {db.name}."""
    named = {f"STATEFORK_{re.sub(r'[^A-Z0-9]', '_', name.upper())}": str(value) for name, value in places.items()}
    run = str(places["run"])
    return named | {"PORT": str(places["port"]), "TMPDIR": run, "XDG_RUNTIME_DIR": run, "HOME": str(places["data"])}


def inherited() -> dict[str, str]:
    """What a command gets of the engine's environment: how to find programs and speak, and none of its secrets."""
    kept = ("PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
    return {name: value for name, value in os.environ.items() if name in kept or name.startswith("LC_")}
