"""What a contract may say of a ``postgres`` resource."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import msgspec
import psycopg
from psycopg import conninfo

from statefork.engine.errors import ContractError
from statefork.engine.options import BadOptions

POOL_MAX = 64
RESERVED_CONNECTIONS = 16  # for the engine, which freezes and seals also when applications took the rest
CONNECTIONS_MIN = 24
CONNECTIONS_MAX = 262_143  # of PostgreSQL
FORM = "write it as postgresql://user@host:5432/postgres or host=… user=… dbname=postgres"
_SOURCE = "exactly one of base, live and live_variable says what the database begins with"
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the adapter. A variable is one of the engine's environment: a contract's text is kept."""

    base: str = ""  # SQL file, custom-format file or directory-format dump, relative to the contract
    live: str = ""  # instead: connection string of a database that is copied once
    live_variable: str = ""  # the environment variable that holds it
    dsn: str = ""  # connection string of an existing server; empty: statefork starts one of its own
    dsn_variable: str = ""
    server: str = ""  # resource whose own server this one uses as well; empty: one of its own
    programs: str = ""  # of the own server, instead of the package's: the directory of postgres, initdb and psql
    strategy: Literal["auto", "shared", "private"] = "auto"  # one server for all environments, or one for each
    accelerate: bool = False  # compile and preload accelerator.c into the own server
    survives: Literal["process", "os"] = "process"  # the crash that a sealed version outlives
    pool: int = 4  # branches of the base made in advance
    max_connections: int = 400  # of the own server
    connections_per_environment_max: int = 50
    settings: dict[str, str] = {}  # further settings of the own server (postgresql.conf)

    def __post_init__(self) -> None:
        if faults := [*self._source_faults(), *self._server_faults(), *self._number_faults()]:
            raise BadOptions(*faults)

    def _source_faults(self) -> Iterator[tuple[str, str]]:
        given = [key for key in ("base", "live", "live_variable") if getattr(self, key)]
        if len(given) != 1:
            yield given[-1] if given else "base", _SOURCE
        yield from _connection_faults("live", self.live)

    def _server_faults(self) -> Iterator[tuple[str, str]]:
        if self.dsn and self.dsn_variable:
            yield "dsn_variable", "dsn and dsn_variable exclude each other"
        yield from _connection_faults("dsn", self.dsn)
        if self.server:
            yield from self._shared_server_faults()
        if not self.external:
            return
        for key, given in (
            ("programs", self.programs),
            ("accelerate", self.accelerate),
            ("strategy", self.strategy == "private"),
        ):
            if given:
                what = "strategy = 'private'" if key == "strategy" else key
                yield key, f"{what} is of statefork's own server, and the contract names another one"

    def _shared_server_faults(self) -> Iterator[tuple[str, str]]:
        for key in ("dsn", "dsn_variable"):
            if getattr(self, key):
                yield key, f"{key} and server exclude each other"
        plain = {field.name: field.default for field in msgspec.structs.fields(type(self))}
        for key in ("programs", "accelerate", "max_connections"):
            if getattr(self, key) != plain[key]:
                yield key, f"{key} is said by the resource whose server it is: {self.server!r}"
        if self.settings:
            yield "settings", f"settings are said by the resource whose server it is: {self.server!r}"

    def _number_faults(self) -> Iterator[tuple[str, str]]:
        for key, least, most, why in (
            ("pool", 0, POOL_MAX, ""),
            ("max_connections", CONNECTIONS_MIN, CONNECTIONS_MAX, f": {RESERVED_CONNECTIONS} of them are the engine's"),
            ("connections_per_environment_max", 1, CONNECTIONS_MAX, ""),
        ):
            if not least <= getattr(self, key) <= most:
                yield key, f"{key} is between {least} and {most}{why}"

    @property
    def external(self) -> bool:
        """Whether the server is somebody else's."""
        return bool(self.dsn or self.dsn_variable)

    def server_dsn(self, resource: str) -> str:
        """Where the existing server is. Raises ContractError when the variable is not set."""
        return self.dsn or _variable(resource, "dsn_variable", self.dsn_variable)

    def live_dsn(self, resource: str) -> str:
        """Where the live database is, or nothing. Raises ContractError when the variable is not set."""
        return _variable(resource, "live_variable", self.live_variable) if self.live_variable else self.live


def _connection_faults(key: str, text: str) -> Iterator[tuple[str, str]]:
    """Of a connection string in the contract, whose text is kept in the journal. Nothing of it is repeated."""
    if not text:
        return
    try:
        given = conninfo.conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        yield key, f"the connection string can't be read: {FORM}"
        return
    for secret in _SECRETS:
        if given.get(secret):
            yield (
                key,
                f"holds a {secret}, and a contract's text is kept in the journal: name by {key}_variable an "
                "environment variable with the connection string, or let ~/.pgpass have the secret",
            )


def _variable(resource: str, option: str, name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        key = f"resources.{resource}.{option}"
        raise ContractError(
            f"{key}: the environment variable {name} is not set",
            hint=f"Set {name} to a connection string such as postgresql://user:password@host/postgres",
            key=key,
        )
    return value
