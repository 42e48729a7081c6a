"""Environments for Gymnasium: one for each packaged world, and ``statefork/contract-v0`` for any contract.

::

    import gymnasium
    import statefork.gym

    env = gymnasium.make("statefork/shop-v0", judge=one_in_basket)

Gymnasium does not look for environments of others by itself: importing this module registers them. Where only a name
can be given, ``"statefork.gym:statefork/shop-v0"`` imports it, too.
"""

from __future__ import annotations

from statefork.adapters.interfaces.worlds import packaged_worlds
from statefork.engine.errors import MissingDependency

try:
    import gymnasium
except ImportError as missing:
    raise MissingDependency(
        "environments for Gymnasium need the Python package 'gymnasium', which is not installed",
        hint="pip install 'statefork[gymnasium,pictures]'",
    ) from missing

from statefork.adapters.interfaces.gym.env import Judge, StateforkEnv
from statefork.adapters.interfaces.gym.vector import StateforkVectorEnv

__all__ = ["Judge", "StateforkEnv", "StateforkVectorEnv"]

_ENV = "statefork.adapters.interfaces.gym.env:StateforkEnv"
_VECTOR = "statefork.adapters.interfaces.gym.vector:StateforkVectorEnv"


def _register(name: str, **arguments: str) -> None:
    gymnasium.register(
        id=f"statefork/{name}-v0",
        entry_point=_ENV,
        vector_entry_point=_VECTOR,
        nondeterministic=True,  # pages tell the time
        kwargs=arguments,
    )


for _world in packaged_worlds():
    _register(_world, contract=_world)
_register("contract")
