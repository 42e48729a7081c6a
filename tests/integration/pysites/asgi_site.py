"""The Starlette board as it is served, with what the tests ask beside its pages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any

import aiosqlite
import checked
import psycopg
from board import glue, starlette_site
from sqlalchemy import text
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

application = starlette_site.make_site(glue.uploads, glue.cache)
LITE = "/nowhere/visits.sqlite3"


async def met(reach: Callable[[], Awaitable[Any]]) -> str:
    """The name of the error; empty if there is none."""
    try:
        await reach()
    except Exception as error:  # noqa: BLE001 - whatever it is, its name is the answer
        return type(error).__name__
    return ""


async def unbound(request: Request) -> Response:
    """What code without an environment meets, in every way that there is to a database."""
    loop = asyncio.get_running_loop()
    found = {
        "sync": checked.NOBODY.meets(lambda: psycopg.connect(starlette_site.WHERE)),
        "lite": checked.NOBODY.meets(lambda: sqlite3.connect(LITE)),
        "around": checked.NOBODY.meets(lambda: sqlite3.Connection(checked.ELSEWHERE)),
        "in a request": checked.around(),
    }
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "async": lambda: psycopg.AsyncConnection.connect(starlette_site.WHERE),
        "pool": lambda: starlette_site.do_job("nobody's"),
        "aiosqlite": partial(_use, aiosqlite.connect(LITE)),
    }
    for name, way in ways.items():
        found[name] = await loop.create_task(met(way), context=Context())
    return JSONResponse(found)


async def _use(connection: Any) -> None:
    async with connection:
        await connection.execute("SELECT 1")


async def take(request: Request) -> Response:
    """Keep connections beyond the request."""
    checked.kept["sync"] = psycopg.connect(starlette_site.WHERE, autocommit=True)
    checked.kept["async"] = await psycopg.AsyncConnection.connect(starlette_site.WHERE, autocommit=True)
    checked.kept["pool"] = await starlette_site.engine.connect()
    checked.kept["aiosqlite"] = await aiosqlite.connect(LITE)
    return JSONResponse("taken")


async def use(request: Request) -> Response:
    """Use them."""
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "async": lambda: checked.kept["async"].execute("SELECT 1"),
        "pool": lambda: checked.kept["pool"].execute(text("SELECT 1")),
        "aiosqlite": lambda: checked.kept["aiosqlite"].execute("SELECT 1"),
    }
    found = {name: await met(way) for name, way in ways.items()}
    found["sync"] = checked.met(lambda: checked.kept["sync"].execute("SELECT 1"))
    return JSONResponse(found)


async def drop(request: Request) -> Response:
    """Keep them no longer."""
    checked.kept["aiosqlite"].stop()
    checked.kept.clear()
    return JSONResponse(None)


async def odd(request: Request) -> Response:
    """What leads to no store."""
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "another name": lambda: psycopg.AsyncConnection.connect("dbname=other"),
        "a file": lambda: psycopg.AsyncConnection.connect("dbname=visits"),
        "a server": lambda: aiosqlite.connect("board.sqlite3").__aenter__(),
    }
    return JSONResponse({name: await met(way) for name, way in ways.items()})


async def ask(request: Request) -> Response:
    """What both sites are asked alike."""
    return JSONResponse(checked.ask(request.path_params["name"], request.query_params))


for page in (unbound, take, use, drop, odd):
    application.routes.append(Route(f"/checked/{page.__name__}", page))
application.routes.append(Route("/checked/{name}", ask))
