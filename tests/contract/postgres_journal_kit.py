"""Journals on the tests' PostgreSQL server: each test has a schema of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.contract.postgres_server import PostgresServer

_numbers = itertools.count(1)


class Place:
    """One journal's place on a server."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.schema = f"t{os.getpid()}_{next(_numbers)}"

    @property
    def dsn(self) -> str:
        return f"{self.server.dsn}?schema={self.schema}"

    def through(self, port: int) -> str:
        """The same by another way."""
        return self.dsn.replace(f":{self.server.port}/", f":{port}/")

    def ask(self, query: str, *parameters: object) -> list[Any]:
        """What a plain client is answered; ``{s}`` stands for the schema."""
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.replace("{s}", self.schema).encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def place_on(server: PostgresServer) -> Iterator[Place]:
    """A fresh schema; it ends with the server."""
    yield Place(server)
