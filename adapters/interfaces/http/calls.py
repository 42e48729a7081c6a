"""What a client says for each verb, and what it makes of the answer, whether it waits or awaits."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from statefork.adapters.interfaces.control.client import EngineLost, NoEngine
from statefork.adapters.interfaces.http.names import TOKEN_VARIABLE
from statefork.adapters.interfaces.http.problems import InternalError, UsageError, error_of
from statefork.adapters.interfaces.http.routes import EXPORT, IMPORT, ROUTES, Route
from statefork.journal.errors import StateforkError

Answer = TypeVar("Answer", covariant=True)
Plain = dict[str, Any]
TIMEOUT = httpx.Timeout(10.0, read=None)
"""An answer takes as long as what was asked for."""

_ROUTES: dict[str, Route] = {route.verb_name: route for route in reversed((*ROUTES, EXPORT, IMPORT))}


class Call(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Plain | None = None
    query: Mapping[str, str] = {}


def headers_of(token: str | None) -> dict[str, str]:
    """What each request bears. ``token`` None: the one that the environment variable says."""
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE, "")
    return {"Authorization": f"Bearer {token}"}


def call_of(verb: str, fields: Mapping[str, Any]) -> Call:
    """How to ask for a verb. Fields that are None are left out. Raises UsageError."""
    route = _ROUTES.get(verb)
    if route is None:
        raise UsageError(f"there is no verb {verb!r}", hint=f"There are: {', '.join(sorted(_ROUTES))}")
    said = {name: value for name, value in fields.items() if value is not None}
    path = route.path
    for name in route.in_path:
        path = path.replace(f"{{{name}}}", quote(str(said.pop(name)), safe="@+"))
    if route.has_body:
        return Call(route.method, path, msgspec.to_builtins(said))
    return Call(route.method, path, query=in_query(said))


def in_query(fields: Mapping[str, Any]) -> dict[str, str]:
    """Fields as a query has them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if value is not None
    }


def checked(response: httpx.Response) -> httpx.Response:
    """A response whose body was read. Raises the error that it tells, of its own class."""
    if response.is_success:
        return response
    try:
        told = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        raise InternalError(f"{response.url} answered {response.status_code}") from None
    raise error_of(told)


def fault_of(error: httpx.HTTPError, url: str) -> StateforkError:
    """What a failed connection means."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return NoEngine(f"nobody answers at {url}", hint="Start an engine there: statefork up CONTRACT --http ADDRESS")
    return EngineLost(
        f"the engine at {url} did not answer: {error or type(error).__name__}",
        hint="Whether it was done is unknown: look at the log, or give it again with the same key",
    )


class Verbs(ABC, Generic[Answer]):
    """The verbs. Each gives what the engine answers, as plain JSON types, or raises the engine's error.

    ``key``: the same command with the same key is answered again, and not done again.
    """

    @abstractmethod
    def send(self, call: Call) -> Answer:
        """Ask, and give the answer."""

    def ask(self, verb: str, **fields: Any) -> Answer:
        """Any verb of the control door, by its name there, with the fields of its request."""
        return self.send(call_of(verb, fields))

    def status(self, *, cost: bool = False) -> Answer:
        """What is served."""
        return self.ask("status", cost=cost)

    def environments(self) -> Answer:
        """Every environment that is not retired."""
        return self.send(Call("GET", "/v1/environments"))

    def create(self, name: str, *, key: str | None = None, **policies: str) -> Answer:
        """A new environment."""
        return self.ask("create", name=name, key=key, **policies)

    def describe(self, env: str) -> Answer:
        """An environment."""
        return self.ask("describe", env=env)

    def retire(self, env: str, *, key: str | None = None) -> Answer:
        """The end of an environment."""
        return self.ask("retire", env=env, key=key)

    def act(self, env: str, action: msgspec.Struct | Mapping[str, Any], *, timeout_s: float | None = None) -> Answer:
        """One action, and what came of it."""
        return self.ask("act", env=env, action=msgspec.to_builtins(action), timeout_s=timeout_s)

    def observe(self, env: str) -> Answer:
        """Look without acting."""
        return self.send(Call("GET", f"/v1/environments/{quote(env, safe='')}/observation"))

    def snapshot(self, env: str, *, key: str | None = None) -> Answer:
        """Publish the present."""
        return self.ask("snapshot", env=env, key=key)

    def reset(self, env: str, *, key: str | None = None) -> Answer:
        """Back to the origin."""
        return self.ask("reset", env=env, key=key)

    def restore(self, env: str, ref: str, *, key: str | None = None) -> Answer:
        """Back to a moment."""
        return self.ask("restore", env=env, ref=ref, key=key)

    def fork(self, ref: str, *, n: int = 1, names: Sequence[str] | None = None, key: str | None = None) -> Answer:
        """Children of a moment."""
        return self.ask("fork", ref=ref, n=n, names=names, key=key)

    def clone(self, ref: str, name: str, *, key: str | None = None) -> Answer:
        """A new environment whose origin is a moment."""
        return self.ask("clone", ref=ref, name=name, key=key)

    def park(self, env: str) -> Answer:
        """Give the slot back."""
        return self.ask("park", env=env)

    def activate(self, env: str) -> Answer:
        """Take a slot."""
        return self.ask("activate", env=env)

    def recover(self, env: str) -> Answer:
        """Give up what came after the last generation."""
        return self.ask("recover", env=env)

    def replay(self, ref: str, *, start: str | None = None, keep: bool = False, states: bool = True) -> Answer:
        """Do what led to a moment again, and compare."""
        return self.ask("replay", ref=ref, start=start, keep=keep, states=states)

    def diff(self, before: str, after: str, *, limit: int = 100, look: bool = False) -> Answer:
        """What differs between two moments."""
        return self.ask("diff", before=before, after=after, limit=limit, look=look)

    def mark(self, ref: str, text: str) -> Answer:
        """Call a generation something."""
        return self.ask("mark", ref=ref, text=text)

    def moment(self, ref: str) -> Answer:
        """A generation, an action or an environment."""
        return self.send(Call("GET", f"/v1/moments/{quote(ref, safe='@+')}"))

    def audit(self, *, stores: bool = True, world: bool = False) -> Answer:
        """Is the history what it claims to be?"""
        return self.send(Call("POST", "/v1/audits", {"stores": stores, "world": world}))

    def log(self, *, env: str = "", after: int = 0, limit: int = 100) -> Answer:
        """Journaled events behind a position; ask again behind ``next`` for those that follow."""
        return self.send(Call("GET", "/v1/log", query=in_query({"env": env, "after": after, "limit": limit})))
