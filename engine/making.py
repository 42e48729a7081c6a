"""A moment that is made when it is wanted, as nobody may have published it: what a transition can be led to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from statefork.engine.refs import Ref
from statefork.journal.values import Moment


class Making:
    """A moment by its ref. ``made`` gives a generation that holds what it held, and stays as long as its body runs.

    A command is known by the ref: repeated with its key it is answered, and nothing is made.
    """

    def __init__(self, ref: Ref, made: Callable[[Ref], AbstractAsyncContextManager[Moment]]) -> None:
        self.ref = ref
        self._made = made

    def __str__(self) -> str:
        return str(self.ref)

    def made(self) -> AbstractAsyncContextManager[Moment]:
        """Make it."""
        return self._made(self.ref)


@asynccontextmanager
async def published(target: Moment | Making) -> AsyncIterator[Moment]:
    """The generation that is meant, which may have to be made."""
    if isinstance(target, Moment):
        yield target
        return
    async with target.made() as moment:
        yield moment
