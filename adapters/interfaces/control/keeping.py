"""What is kept of an environment, through the control door: when snapshots are taken, and which generations stay."""

from __future__ import annotations

from typing import Any

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.environment import Environment, check_retention, check_snapshots
from statefork.adapters.interfaces.python import Engine

Asked = ask.Create | ask.CreateMany | ask.Keep
CONTRACT = "contract"
"""What is written for: as the contract says."""


def check_policies(asked: Asked) -> None:
    """Raise ContractError for a text that is no policy, before anything is made."""
    if asked.snapshots not in (None, CONTRACT):
        check_snapshots(asked.snapshots)
    if asked.retention not in (None, CONTRACT):
        check_retention(asked.retention)


def choose(env: Environment, asked: Asked) -> None:
    """What was asked for holds from here on."""
    if asked.snapshots is not None:
        env.keep_snapshots(None if asked.snapshots == CONTRACT else asked.snapshots)
    if asked.retention is not None:
        env.keep_generations(None if asked.retention == CONTRACT else asked.retention)


async def keep(engine: Engine, asked: ask.Keep) -> dict[str, Any]:
    """Choose, and tell what holds."""
    check_policies(asked)
    env = await engine.find(asked.env)
    choose(env, asked)
    upkeep, contract = engine.kernel.upkeep, engine.kernel.contract
    return {
        "env": env.name,
        "snapshots": str(upkeep.snapshots_of(env.name)),
        "retention": str(upkeep.retention_of(env.name)),
        "contract": {"snapshots": str(contract.snapshots), "retention": str(contract.retention)},
    }
