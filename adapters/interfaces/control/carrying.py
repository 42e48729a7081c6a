"""Exports and imports through the control door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.control.watching import telling
from statefork.adapters.interfaces.python import Engine


async def exported(engine: Engine, asked: ask.Export) -> dict[str, Any]:
    """Write a file."""
    with telling(asked.task) as progress:
        done = await engine.export(
            asked.ref, Path(asked.path), progress, ends=asked.ends, base=asked.base, secrets=asked.secrets
        )
    plain: dict[str, Any] = msgspec.to_builtins(done)
    return plain


async def imported(engine: Engine, asked: ask.Import) -> dict[str, Any]:
    """Take a file in."""
    with telling(asked.task) as progress:
        done = await engine.import_(Path(asked.path), asked.name, progress)
    plain: dict[str, Any] = msgspec.to_builtins(done)
    return plain
