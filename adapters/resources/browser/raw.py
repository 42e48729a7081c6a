"""A Playwright page for code that runs on trio (or on another asyncio loop): a thin proxy that goes over the bridge.

Coroutine methods are awaited on Playwright's loop; what they give back is wrapped in turn, so
``await page.get_by_role("button").click()`` works as in Playwright's documentation, and so do ``async with
page.expect_popup() as popup``. Callbacks given to ``page.on`` or ``page.route`` run on Playwright's thread.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from statefork.adapters.resources.browser.bridge import AsyncioThread
from statefork.engine.errors import ResourceFailed

_PLAIN = (str, bytes, int, float, bool, type(None))


class Front(Protocol):
    """The context that a lent page belongs to. All on Playwright's thread."""

    def front(self) -> Any:
        """The page of the tab that is the active one."""
        ...

    def show(self, page: Any) -> None:
        """A page was brought to front."""
        ...

    async def rest(self, seconds_max: float) -> None:
        """Return when the active page has come to rest, or after that time."""
        ...


class Loan:
    """Whether the page may still be used: it was lent for one action.

    ``test_id`` is the attribute that ``get_by_test_id`` means; empty: Playwright's.
    """

    def __init__(self, thread: AsyncioThread, context: Front) -> None:
        self.thread = thread
        self.context = context
        self.test_id = ""
        self.ended = False

    def check(self) -> AsyncioThread:
        """The bridge; raises ResourceFailed after the action's end."""
        if self.ended:
            raise ResourceFailed("this page was lent for one action, which has ended", hint="Ask for it again")
        return self.thread


class Proxy:
    """Stands for one Playwright object."""

    __slots__ = ("_loan", "_target")

    def __init__(self, target: Any, loan: Loan) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_loan", loan)

    def __getattr__(self, name: str) -> Any:
        target, loan = self._target, self._loan
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "get_by_test_id" and loan.test_id:
            return _by_attribute(target, loan)
        value = loan.check().call_sync(lambda: getattr(target, name))
        if inspect.iscoroutinefunction(value):
            return _forward(value, loan)
        if inspect.ismethod(value):
            return _forward_sync(value, loan)
        return wrap(value, loan)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of a lent page can't be set")

    def __repr__(self) -> str:
        return f"<lent {self._target!r}>"

    def __eq__(self, other: object) -> bool:
        return bool(self._target == unwrap(other))

    def __hash__(self) -> int:
        return hash(self._target)

    async def __aenter__(self) -> Any:
        async def enter() -> Any:
            return await self._target.__aenter__()

        return wrap(await self._loan.check().call(enter), self._loan)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        async def leave() -> Any:
            return await self._target.__aexit__(kind, error, trace)

        return await self._loan.check().call(leave)


def _forward(method: Callable[..., Any], loan: Loan) -> Callable[..., Any]:
    async def forwarded(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = unwrap(args), unwrap(kwargs)
        found = await loan.check().call(method, *args, **kwargs)
        if method.__name__ == "bring_to_front":
            page = getattr(method, "__self__", None)
            loan.check().call_sync(lambda: loan.context.show(page))
        return wrap(found, loan)

    return forwarded


def _by_attribute(target: Any, loan: Loan) -> Callable[[str], Any]:
    def by_attribute(value: str) -> Any:
        selector = f"[{loan.test_id}={json.dumps(value)}]"
        return wrap(loan.check().call_sync(lambda: target.locator(selector)), loan)

    return by_attribute


def mean_by_test_id(page: Proxy, attribute: str) -> None:
    """From here on ``get_by_test_id`` looks for that attribute, on this page as long as it is lent."""
    page._loan.test_id = attribute


def front(page: Proxy) -> Any:
    """The page of the tab that is active now: what was done with a lent one may have opened or closed some."""
    loan: Loan = page._loan
    return wrap(loan.check().call_sync(loan.context.front), loan)


async def rest(page: Proxy, seconds_max: float) -> None:
    """Wait until the active tab has come to rest, as after an action."""
    loan: Loan = page._loan
    await loan.check().call(loan.context.rest, seconds_max)


def _forward_sync(method: Callable[..., Any], loan: Loan) -> Callable[..., Any]:
    def forwarded(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = unwrap(args), unwrap(kwargs)
        return wrap(loan.check().call_sync(lambda: method(*args, **kwargs)), loan)

    return forwarded


def wrap(value: Any, loan: Loan) -> Any:
    """Plain values as they are, Playwright's objects as proxies, awaitables as awaitables of such."""
    if isinstance(value, _PLAIN):
        return value
    if inspect.isawaitable(value):
        return _awaited(value, loan)
    if isinstance(value, list | tuple):
        return type(value)(wrap(item, loan) for item in value)
    if type(value).__module__.startswith("playwright"):
        return value if isinstance(value, dict | BaseException) else Proxy(value, loan)
    return value


async def _awaited(value: Any, loan: Loan) -> Any:
    async def wait() -> Any:
        return await value

    return wrap(await loan.check().call(wait), loan)


def unwrap(value: Any) -> Any:
    """The Playwright objects behind proxies, in arguments."""
    if isinstance(value, Proxy):
        return value._target
    if isinstance(value, list | tuple):
        return type(value)(unwrap(item) for item in value)
    if isinstance(value, dict):
        return {key: unwrap(item) for key, item in value.items()}
    return value
