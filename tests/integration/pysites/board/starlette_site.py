"""The board on Starlette: SQLAlchemy's async pool for the notes, psycopg for the rest, aiosqlite for the visits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from board.models import NAME, Job, Note, Visit

WHERE = f"host=nowhere.invalid user=board dbname={NAME}"
engine = create_async_engine(f"postgresql+psycopg://board@nowhere.invalid/{NAME}")
visits = create_async_engine("sqlite+aiosqlite:////nowhere/visits.sqlite3")
running: set[asyncio.Task[None]] = set()


async def run(statement: str, *parameters: object) -> list[Any]:
    """One statement."""
    async with await psycopg.AsyncConnection.connect(WHERE) as connection:
        cursor = await connection.execute(statement, parameters)
        return await cursor.fetchall() if cursor.description else []


async def do_job(word: str) -> None:
    """What a job does."""
    async with AsyncSession(engine) as orm, orm.begin():
        orm.add(Job(word=word))


def do_job_here(word: str) -> None:
    """The same in a thread."""
    with psycopg.connect(WHERE) as connection:
        connection.execute("INSERT INTO jobs (word) VALUES (%s)", [word])


async def do_jobs(words: list[str]) -> None:
    """Several, one after the other."""
    for word in words:
        await do_job(word)


async def read_line(pipe: str) -> str:
    """Wait for somebody to write there; in no thread."""
    loop, line = asyncio.get_running_loop(), b""
    opened = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while not line.endswith(b"\n"):
            there = asyncio.Event()
            loop.add_reader(opened, there.set)
            await there.wait()
            loop.remove_reader(opened)
            if not (piece := os.read(opened, 1)):
                break
            line += piece
    finally:
        loop.remove_reader(opened)
        os.close(opened)
    return line.decode().strip()


def start(work: Any) -> None:
    """A task of which nobody asks again."""
    task = asyncio.create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)


def make_site(uploads: Callable[[], Path], cache: Callable[[], dict[str, str]]) -> Starlette:
    """The application. Where uploads go and what keeps its cache is configured."""

    async def login(request: Request) -> Response:
        token = secrets.token_hex(16)
        await run("INSERT INTO sessions VALUES (%s, %s)", token, (await request.json())["person"])
        answer = PlainTextResponse("welcome")
        answer.set_cookie("board", token)
        return answer

    async def whoami(request: Request) -> Response:
        rows = await run("SELECT person FROM sessions WHERE token = %s", request.cookies.get("board", ""))
        return PlainTextResponse(rows[0][0] if rows else "")

    async def notes(request: Request) -> Response:
        async with AsyncSession(engine) as orm, orm.begin():
            if request.method == "POST":
                orm.add(Note(**await request.json()))
                return PlainTextResponse("pinned")
            found = [[note.title, note.body] for note in await orm.scalars(select(Note).order_by(Note.id))]
        async with AsyncSession(visits) as orm, orm.begin():
            orm.add(Visit(path=request.url.path))
        return JSONResponse(found)

    async def count_visits(request: Request) -> Response:
        async with aiosqlite.connect("/nowhere/visits.sqlite3") as connection:
            rows = await connection.execute_fetchall("SELECT count(*) FROM visits")
        return JSONResponse(next(iter(rows))[0])

    def search(request: Request) -> Response:
        """In a thread of Starlette's, with the sync driver."""
        with psycopg.connect(WHERE) as connection:
            found = connection.execute("SELECT title FROM notes WHERE body LIKE %s", [f"%{request.query_params['q']}%"])
            return JSONResponse([row[0] for row in found])

    async def banner(request: Request) -> Response:
        if request.method == "POST":
            cache()["banner"] = text = (await request.json())["text"]
            await run("UPDATE settings SET value = %s WHERE name = 'banner'", text)
        if "banner" not in cache():
            cache()["banner"] = (await run("SELECT value FROM settings WHERE name = 'banner'"))[0][0]
        return PlainTextResponse(cache()["banner"])

    async def files(request: Request) -> Response:
        path = uploads() / request.path_params["name"]
        if request.method == "POST":
            await asyncio.to_thread(path.write_bytes, await request.body())
        return Response(await asyncio.to_thread(path.read_bytes))

    async def queue(request: Request) -> Response:
        """In each way that there is: a task, a thread, and what Starlette does after the answer."""
        first, second, *others = (await request.json())["words"]
        start(do_job(first))
        asyncio.get_running_loop().run_in_executor(None, do_job_here, second)
        return PlainTextResponse("queued", background=BackgroundTask(do_jobs, others))

    async def later(request: Request) -> Response:
        pipe, word = request.query_params["pipe"], request.query_params["word"]

        async def work() -> None:
            await read_line(pipe)
            await do_job(word)

        start(work())
        return PlainTextResponse("started")

    async def stream(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            yield "data: open\n\n"
            while line := await read_line(request.query_params["pipe"]):
                yield f"data: {line} {(await run('SELECT count(*) FROM notes'))[0][0]}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def transaction(request: Request) -> Response:
        async def events() -> AsyncIterator[str]:
            async with AsyncSession(engine) as orm, orm.begin():
                orm.add(Note(title="in a transaction", body=""))
                await orm.flush()
                yield "data: begun\n\n"
                await read_line(request.query_params["pipe"])
            yield "data: done\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def endless(request: Request) -> Response:
        await run("SELECT pg_sleep(600)")
        return PlainTextResponse("over")

    async def draw(request: Request) -> Response:
        return JSONResponse({"chance": [random.random(), secrets.token_hex(4)], "time": time.time()})

    @contextlib.asynccontextmanager
    async def lifespan(site: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"greeting": "good morning"}

    async def greet(request: Request) -> Response:
        return PlainTextResponse(request.state.greeting)

    both = ["GET", "POST"]
    return Starlette(
        routes=[
            Route("/login", login, methods=["POST"]),
            Route("/whoami", whoami),
            Route("/notes", notes, methods=both),
            Route("/visits", count_visits),
            Route("/search", search),
            Route("/banner", banner, methods=both),
            Route("/files/{name}", files, methods=both),
            Route("/jobs", queue, methods=["POST"]),
            *(Route(f"/{page.__name__}", page) for page in (later, stream, transaction, endless, draw, greet)),
        ],
        lifespan=lifespan,
    )
