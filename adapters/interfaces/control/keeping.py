"""What is kept of an environment, through the control door: when snapshots are taken, and which generations stay."""

from __future__ import annotations

from typing import Any

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.environment import Environment, chosen
from statefork.adapters.interfaces.python import Engine
from statefork.engine.policy import Choice

CONTRACT = "contract"
"""What is written for: as the contract says."""


def said(text: str | None) -> str | None:
    """A policy as Python has it, where nothing is chosen by what the contract says."""
    return None if text == CONTRACT else text


def held(env: Environment) -> dict[str, str]:
    """What holds for an environment now, whoever says it."""
    upkeep = env.kernel.upkeep
    return {"snapshots": str(upkeep.snapshots_of(env.name)), "retention": str(upkeep.retention_of(env.name))}


async def keep(engine: Engine, asked: ask.Keep) -> dict[str, Any]:
    """Choose, and tell what holds. Raises ContractError for a text that is no policy, before anything is chosen."""
    env, contract = await engine.find(asked.env), engine.kernel.contract
    wanted = chosen(said(asked.snapshots), said(asked.retention))
    choice = Choice(
        snapshots="" if asked.snapshots == CONTRACT else wanted.snapshots,
        retention="" if asked.retention == CONTRACT else wanted.retention,
    )
    if choice:
        await engine.kernel.upkeep.choose(env.name, choice, key=asked.key)
    capsule = env.capsule
    return {
        "env": env.name,
        **held(env),
        "since": {"snapshots": capsule.snapshots.at or None, "retention": capsule.retention.at or None},
        "contract": {"snapshots": str(contract.snapshots), "retention": str(contract.retention)},
    }
