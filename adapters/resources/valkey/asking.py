"""How the engine talks to the server: as its administrator, blocking, with the driver's errors told as ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import redis
from redis import exceptions

from statefork.engine.errors import ResourceFailed, RuntimeDied
from statefork.journal.values import Json

ADMIN = "statefork"
BATCH = 500  # keys of one round trip
_TIMEOUT_S = 30.0
_PATIENCE_S = 5.0
_AGAIN_S = 0.01

T = TypeVar("T")

Door = dict[str, Json]
"""Where the server is: ``path`` of its socket, or ``host`` and ``port``."""


@contextmanager
def told(resource: str, doing: str) -> Iterator[None]:
    """Around every use of the driver. Raises RuntimeDied where the server is gone, else ResourceFailed."""
    try:
        yield
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
        raise RuntimeDied(
            f"{resource}: {doing} failed: the server does not answer ({error})",
            hint="It is started again; try again",
            resource=resource,
        ) from error
    except exceptions.RedisError as error:
        hint = ""
        if str(error).startswith(("OOM", "command not allowed when used memory")):
            hint = f"The server's memory is full; nothing was lost. Raise resources.{resource}.max_memory, or retire"
            hint += " environments, then try again"
        raise ResourceFailed(f"{resource}: {doing} failed: {error}", hint=hint, resource=resource) from error


def connected(door: Door, user: str, password: str) -> Any:
    """A client with a pool of its own."""
    options: dict[str, Any] = {"username": user, "password": password, "protocol": 2, "socket_timeout": _TIMEOUT_S}
    if "path" in door:
        return redis.Redis(unix_socket_path=str(door["path"]), **options)
    return redis.Redis(host=str(door["host"]), port=int(str(door["port"])), **options)


def url_of(door: Door, user: str, secret: str) -> str:
    """As clients of Redis take it, secret and all."""
    if "path" in door:
        return f"unix://{user}:{secret}@{quote(str(door['path']))}?db=0"
    return f"redis://{user}:{secret}@{door['host']}:{door['port']}/0"


class Admin:
    """Commands of the administrator. Several threads may ask at once."""

    def __init__(self, door: Door, password: str, end_stuck: Callable[[float], None]) -> None:
        """``end_stuck`` ends a server that has run since a time of the monotonic clock, and waits for the next."""
        self._client: Any = connected(door, ADMIN, password)
        self._end_stuck = end_stuck

    def ask(self, *words: str | bytes | int) -> Any:
        """One command's answer."""
        return self._patiently(lambda: self._client.execute_command(*words))

    def ask_all(self, commands: Iterable[Sequence[str | bytes | int]]) -> list[Any]:
        """The answers of several, in one round trip; the first error is raised."""
        together = list(commands)

        def ask() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipeline:
                for words in together:
                    pipeline.execute_command(*words)
                answers: list[Any] = pipeline.execute(raise_on_error=False)  # its own error shows keys and values
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

        return self._patiently(ask)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """One environment's endless script holds up all of them: it is ended; once it has written, with the server."""
        began = time.monotonic()
        busy_since = 0.0
        unkillable = ended = False
        while True:
            try:
                return ask()
            except exceptions.ResponseError as error:
                now = time.monotonic()
                busy_since = busy_since or now
                late = now >= busy_since + _PATIENCE_S
                if not str(error).startswith("BUSY ") or (late and (ended or not unkillable)):
                    raise
            if late:
                self._end_stuck(began)
                self._client.connection_pool.disconnect()
                busy_since, ended = 0.0, True
                continue
            try:
                self._client.execute_command("SCRIPT KILL")
            except exceptions.ResponseError as error:  # it has ended by itself, or has written
                unkillable = str(error).startswith("UNKILLABLE")
            time.sleep(_AGAIN_S)

    def keys(self, prefix: str) -> set[bytes]:
        """The names, without the prefix, of all keys that begin with it. Looks at every key of the server."""
        found: set[bytes] = set()
        cursor: int | bytes = 0
        skip = len(prefix)
        while True:
            cursor, names = self._client.execute_command("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1000)
            found.update(name[skip:] for name in names)
            if not int(cursor):
                return found

    def remove(self, prefix: str, names: Iterable[bytes]) -> None:
        """Remove keys, those that are not there too."""
        start = prefix.encode()
        for batch in batches(sorted(names)):
            self.ask("UNLINK", *(start + name for name in batch))

    def pubsub(self) -> Any:
        """The driver's subscriber, on a connection that waits without limit."""
        options = {**self._client.connection_pool.connection_kwargs, "socket_timeout": None}
        pool = redis.ConnectionPool(connection_class=self._client.connection_pool.connection_class, **options)
        return redis.client.PubSub(pool)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
        self._client.connection_pool.disconnect()


def batches(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """A few at a time."""
    for start in range(0, len(names), BATCH):
        yield names[start : start + BATCH]
