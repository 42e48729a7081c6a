"""The board on Flask: SQLAlchemy's pool for the notes, the driver itself for the rest, a pool of threads for jobs."""

from __future__ import annotations

import contextlib
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flask import Flask, Response, jsonify, request
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session as Orm

from board.models import NAME, Job, Note

engine = create_engine(f"sqlite:////nowhere/{NAME}.sqlite3")
jobs = ThreadPoolExecutor(2)


@contextlib.contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """A connection for a while."""
    with contextlib.closing(sqlite3.connect(f"/nowhere/{NAME}.sqlite3")) as connection, connection:
        yield connection


def run(statement: str, *parameters: object) -> list[Any]:
    """One statement."""
    with connected() as connection:
        return connection.execute(statement, parameters).fetchall()


def do_job(word: str) -> None:
    """What a job does."""
    with Orm(engine) as orm, orm.begin():
        orm.add(Job(word=word))


def read_line(pipe: str) -> str:
    """Wait for somebody to write there."""
    with Path(pipe).open() as lines:
        return lines.readline()


def make_site(uploads: Callable[[], Path], cache: Callable[[], dict[str, str]]) -> Flask:
    """The application. Where uploads go and what keeps its cache is configured."""
    site = Flask("board")

    @site.post("/login")
    def login() -> Response:
        token = secrets.token_hex(16)
        run("INSERT INTO sessions VALUES (?, ?)", token, request.json["person"])
        answer = Response("welcome")
        answer.set_cookie("board", token)
        return answer

    @site.get("/whoami")
    def whoami() -> str:
        rows = run("SELECT person FROM sessions WHERE token = ?", request.cookies.get("board", ""))
        return str(rows[0][0]) if rows else ""

    @site.post("/notes")
    def add() -> str:
        with Orm(engine) as orm, orm.begin():
            orm.add(Note(title=request.json["title"], body=request.json["body"]))
        return "pinned"

    @site.get("/notes")
    def notes() -> Response:
        with Orm(engine) as orm:
            return jsonify([[note.title, note.body] for note in orm.scalars(select(Note).order_by(Note.id))])

    @site.get("/search")
    def search() -> Response:
        pattern = f"%{request.args['q']}%"
        return jsonify([row[0] for row in run("SELECT title FROM notes WHERE body LIKE ?", pattern)])

    @site.post("/banner")
    def set_banner() -> str:
        text = request.json["text"]
        run("UPDATE settings SET value = ? WHERE name = 'banner'", text)
        cache()["banner"] = text
        return "set"

    @site.get("/banner")
    def banner() -> str:
        if "banner" not in cache():
            cache()["banner"] = run("SELECT value FROM settings WHERE name = 'banner'")[0][0]
        return cache()["banner"]

    @site.post("/files/<name>")
    def upload(name: str) -> str:
        (uploads() / name).write_bytes(request.data)
        return "kept"

    @site.get("/files/<name>")
    def download(name: str) -> Response:
        return Response((uploads() / name).read_bytes())

    @site.post("/jobs")
    def queue() -> str:
        for word in request.json["words"]:
            jobs.submit(do_job, word)
        return "queued"

    @site.get("/later")
    def later() -> str:
        pipe, word = request.args["pipe"], request.args["word"]

        def work() -> None:
            read_line(pipe)
            do_job(word)

        threading.Thread(target=work, name="courier").start()
        return "started"

    @site.get("/stream")
    def stream() -> Response:
        pipe = request.args["pipe"]

        def events() -> Iterator[str]:
            yield "data: open\n\n"
            with Path(pipe).open() as lines:
                while line := lines.readline():
                    yield f"data: {line.strip()} {run('SELECT count(*) FROM notes')[0][0]}\n\n"

        return Response(events(), content_type="text/event-stream")

    @site.get("/transaction")
    def transaction() -> Response:
        pipe = request.args["pipe"]

        def events() -> Iterator[str]:
            with connected() as connection:
                connection.execute("INSERT INTO notes (title, body) VALUES ('in a transaction', '')")
                yield "data: begun\n\n"
                read_line(pipe)
            yield "data: done\n\n"

        return Response(events(), content_type="text/event-stream")

    @site.get("/endless")
    def endless() -> str:
        run("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")
        return "over"

    @site.get("/draw")
    def draw() -> Response:
        return jsonify({"chance": [random.random(), secrets.token_hex(4)], "time": time.time()})

    return site
