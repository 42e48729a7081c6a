"""A picture of what an agent would see now, also where a contract takes none with each observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from statefork.engine.ports import Actor
from statefork.journal.values import Binding

if TYPE_CHECKING:
    from statefork.engine.kernel import Kernel


@runtime_checkable
class Pictured(Protocol):
    """An actor with a screen."""

    async def picture(self, binding: Binding) -> bytes:
        """What is to be seen now, as PNG, whatever its options say. Nothing is changed.

        Raises ActionFailed where it does not answer within a time of its own, RuntimeDied.
        """
        ...


async def picture(kernel: Kernel, env: str) -> bytes:
    """What an agent would see now, under a lease; empty where its world has no screen. Nothing is journaled.

    Raises what ``kernel.lease`` raises, and what the actor does.
    """
    for name in kernel.contract.order:
        resource = kernel.resources[name]
        if isinstance(resource, Actor) and isinstance(resource, Pictured):
            async with kernel.lease(env, "picture"):
                return await resource.picture(kernel.bindings(env)[name])
    return b""
