"""The native page for code that does not await: the methods of Playwright's *synchronous* interface.

It goes over the lent page (:mod:`statefork.adapters.resources.browser.raw`), whose coroutines run as calls under the
page's lease: ``page.get_by_role("button").click()``, ``with page.expect_popup() as popup: ...`` and ``popup.value``.
Callbacks given to ``page.on`` or ``page.route`` run on Playwright's own thread, with its own asynchronous objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

from statefork.adapters.interfaces.blocking import Calls
from statefork.adapters.resources.browser.raw import Proxy
from statefork.adapters.resources.browser.raw import front as active
from statefork.adapters.resources.browser.raw import mean_by_test_id as mean
from statefork.adapters.resources.browser.raw import rest as come_to_rest


class LentPage:
    """Stands for one Playwright object."""

    __slots__ = ("_calls", "_target")

    def __init__(self, target: Proxy, calls: Calls) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_calls", calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._calls.check()
        return lend(getattr(self._target, name), self._calls)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)  # which refuses

    def __repr__(self) -> str:
        return repr(self._target)

    def __eq__(self, other: object) -> bool:
        return bool(self._target == _back(other))

    def __hash__(self) -> int:
        return hash(self._target)

    def __enter__(self) -> Any:
        return lend(self._calls.call(self._target.__aenter__), self._calls)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self._calls.call(lambda: self._target.__aexit__(kind, error, trace))


def mean_by_test_id(page: LentPage, attribute: str) -> None:
    """From here on ``get_by_test_id`` looks for that attribute, on this page as long as it is lent."""
    mean(page._target, attribute)


def front(page: LentPage) -> Any:
    """The page of the tab that is active now."""
    page._calls.check()
    return lend(active(page._target), page._calls)


def rest(page: LentPage, seconds_max: float) -> None:
    """Wait until the active tab has come to rest, as after an action, or that time has passed."""
    page._calls.call(lambda: come_to_rest(page._target, seconds_max))


def lend(value: Any, calls: Calls) -> Any:
    """What an asynchronous object gives, without the waiting: plain values stay as they are."""
    if isinstance(value, Proxy):
        return LentPage(value, calls)
    if inspect.isawaitable(value):
        return lend(calls.call(lambda: value), calls)
    if inspect.isfunction(value):
        return _calling(value, calls)
    if isinstance(value, list | tuple):
        return type(value)(lend(item, calls) for item in value)
    return value


def _calling(method: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        calls.check()
        return lend(method(*_back(args), **_back(kwargs)), calls)

    return called


def _back(value: Any) -> Any:
    """The asynchronous objects behind lent ones, in arguments."""
    if isinstance(value, LentPage):
        return value._target
    if isinstance(value, list | tuple):
        return type(value)(_back(item) for item in value)
    if isinstance(value, dict):
        return {key: _back(item) for key, item in value.items()}
    return value
