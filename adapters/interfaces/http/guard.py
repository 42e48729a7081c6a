"""Who may ask: whoever bears the token, by a name of this address, and no page of another origin.

A page in somebody's browser can send requests to loopback ports. It doesn't know the token; and where its own name was
made to lead here (DNS rebinding) the request names that host, and is refused before anything is looked at.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from statefork.adapters.interfaces.http.names import TOKEN_NAME, TOKEN_VARIABLE
from statefork.adapters.interfaces.http.problems import ForbiddenOrigin, ForeignHost, Unauthorised
from statefork.adapters.interfaces.http.replies import problem_response
from statefork.journal.errors import StateforkError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOKEN_BYTES = 32
_SCHEME = "bearer "
OPEN_PATHS = frozenset({"/health"})
"""What tells nothing, and is answered without a token."""


def token_of(state: Path, given: str | None = None) -> str:
    """The token of a state directory: the given one, else the one that is kept there, made at the first time.

    It is readable by the engine's user alone.
    """
    if given:
        return given
    place = state / TOKEN_NAME
    try:
        number = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        place.chmod(0o600)
        if kept := place.read_text().strip():
            return kept
        number = os.open(place, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with os.fdopen(number, "w") as file:
        file.write(f"{token}\n")
    return token


class Guard:
    """Refuses what may not pass to the application behind it. ``token`` None: nobody needs one."""

    def __init__(self, app: App, *, token: str | None, names: Collection[str] = ()) -> None:
        self._app = app
        self._token = token.encode() if token is not None else None
        self._names = frozenset({"localhost", *(name.lower() for name in names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(str(scope["path"]), scope["headers"])
        except StateforkError as error:
            await problem_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Collection[tuple[bytes, bytes]]) -> None:
        said = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        self._check_host(said)
        if self._token is None or path in OPEN_PATHS:
            return
        scheme_and_token = said.get("authorization", "")
        scheme, token = scheme_and_token[: len(_SCHEME)], scheme_and_token[len(_SCHEME) :]
        right = hmac.compare_digest(token.strip().encode("latin-1"), self._token)
        if scheme.lower() != _SCHEME or not right:
            raise Unauthorised(
                "the request bears no token, or not this engine's",
                hint=f"Send it as 'Authorization: Bearer TOKEN': it stands in {TOKEN_NAME} of the state directory, "
                f"unless {TOKEN_VARIABLE} says it",
            )

    def _check_host(self, said: Mapping[str, str]) -> None:
        host = said.get("host", "")
        if not self._is_ours(host):
            raise ForeignHost(
                f"this address does not answer for the host {host[:100]!r}",
                hint="Ask by its number, as localhost, or by a name that the engine was given",
            )
        origin = said.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise ForbiddenOrigin(f"a page of {origin[:100]!r} may not ask for anything here")

    def _is_ours(self, host: str) -> bool:
        """Whether no name but ours can have led here: a number can't be made to lead elsewhere."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
