"""What is open behind what an agent sees, as tabs that are not shown: no observation says how they came back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from statefork.engine.ports import Actor
from statefork.journal.values import Binding

if TYPE_CHECKING:
    from statefork.engine.kernel import Kernel


@runtime_checkable
class Layered(Protocol):
    """An actor that holds more than it shows."""

    async def unlike_behind(self, binding: Binding) -> tuple[str, ...]:
        """What is not shown and did not come back, when this was bound, as it was when it was sealed."""
        ...


async def unlike_behind(kernel: Kernel, env: str) -> tuple[str, ...]:
    """The same of all actors of an environment that is bound."""
    found: list[str] = []
    for name in kernel.contract.order:
        resource = kernel.resources[name]
        if isinstance(resource, Actor) and isinstance(resource, Layered):
            found += await resource.unlike_behind(kernel.bindings(env)[name])
    return tuple(found)
