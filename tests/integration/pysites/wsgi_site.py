"""The Flask board as it is served, with what the tests ask beside its pages."""

from __future__ import annotations

import sqlite3

import checked
from board import flask_site, glue
from flask import Response, jsonify, request

application = flask_site.make_site(glue.uploads, glue.cache)
SQLITE = f"/nowhere/{flask_site.NAME}.sqlite3"


@application.get("/checked/unbound")
def unbound() -> Response:
    """What code without an environment meets, in every way that there is to a database."""
    ways = {
        "driver": lambda: sqlite3.connect(SQLITE),
        "around": lambda: sqlite3.Connection(checked.ELSEWHERE),
        "pool": flask_site.engine.connect,
        "job": lambda: flask_site.do_job("nobody's"),
    }
    return jsonify({name: checked.NOBODY.meets(way) for name, way in ways.items()} | {"in a request": checked.around()})


@application.get("/checked/take")
def take() -> str:
    """Keep connections beyond the request."""
    checked.kept["driver"] = sqlite3.connect(SQLITE, check_same_thread=False)
    checked.kept["cursor"] = checked.kept["driver"].execute("SELECT title FROM notes")
    checked.kept["pool"] = flask_site.engine.connect()
    return '"taken"'


@application.get("/checked/use")
def use() -> Response:
    """Use them."""
    return jsonify(
        {
            "driver": checked.met(lambda: checked.kept["driver"].execute("SELECT 1")),
            "commit": checked.met(checked.kept["driver"].commit),
            "cursor": checked.met(checked.kept["cursor"].fetchall),
            "pool": checked.met(lambda: checked.kept["pool"].exec_driver_sql("SELECT 1")),
        }
    )


@application.get("/checked/odd")
def odd() -> Response:
    """What leads to no store."""
    ways = {
        "another name": lambda: sqlite3.connect("other.sqlite3"),
        "memory": lambda: sqlite3.connect(":memory:"),
        "attached": lambda: flask_site.run(f"ATTACH '{checked.ELSEWHERE}' AS other"),
        "backup": lambda: sqlite3.connect("backup.sqlite3"),
    }
    return jsonify({name: checked.met(way) for name, way in ways.items()})


@application.get("/checked/drop")
def drop() -> Response:
    """Keep them no longer."""
    checked.kept.clear()
    return jsonify(None)


@application.get("/checked/<name>")
def ask(name: str) -> Response:
    """What both sites are asked alike."""
    return jsonify(checked.ask(name, request.args))
