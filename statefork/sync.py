"""The Python interface without ``await``; see :mod:`statefork.adapters.interfaces.sync`."""

from __future__ import annotations

from statefork.adapters.interfaces.sync import Engine, Environment, Evaluation, open_engine

__all__ = ["Engine", "Environment", "Evaluation", "open_engine"]
