"""statefork: share the runtime, fork the state.

Many logical computer-use environments on the same resident browser, servers and databases; each owns only its private
state, every change of which is an event in a journal. See ``docs/`` and :func:`open_engine`.

Names are loaded when they are first used: an application server that imports one small module of statefork does not
load a browser driver with it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statefork import sync as sync
    from statefork.adapters.interfaces.auditing import audit as audit
    from statefork.adapters.interfaces.environment import Environment as Environment
    from statefork.adapters.interfaces.environment import Evaluation as Evaluation
    from statefork.adapters.interfaces.python import Engine as Engine
    from statefork.adapters.interfaces.python import open_engine as open_engine
    from statefork.adapters.interfaces.views import Seen as Seen
    from statefork.engine.refs import Ref as Ref
    from statefork.engine.settings import DrainPolicy as DrainPolicy
    from statefork.engine.settings import Settings as Settings
    from statefork.journal.errors import StateforkError as StateforkError
    from statefork.journal.values import Moment as Moment

__version__ = "0.1.0"

_HOMES = {
    "DrainPolicy": "statefork.engine.settings",
    "Engine": "statefork.adapters.interfaces.python",
    "Environment": "statefork.adapters.interfaces.environment",
    "Evaluation": "statefork.adapters.interfaces.environment",
    "Moment": "statefork.journal.values",
    "Ref": "statefork.engine.refs",
    "Seen": "statefork.adapters.interfaces.views",
    "Settings": "statefork.engine.settings",
    "StateforkError": "statefork.journal.errors",
    "audit": "statefork.adapters.interfaces.auditing",
    "open_engine": "statefork.adapters.interfaces.python",
}

__all__ = [*_HOMES]  # noqa: PLE0604 -- the names are the keys above, listed once


def __getattr__(name: str) -> Any:
    if name == "sync":
        return importlib.import_module("statefork.sync")
    if name not in _HOMES:
        raise AttributeError(f"module 'statefork' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
