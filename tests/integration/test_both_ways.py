"""One site, once on a server that environments share and once on private backends: what is seen is the same."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import httpx
import pytest

import statefork
from statefork.adapters.interfaces.environment import Environment
from tests.integration.web_kit import PROJECT

pytestmark = pytest.mark.anyio

SHARED = f"""
[contract]
name = "notes"

[resources.db]
adapter = "sqlite"
base = "base/notes.sqlite3"

[resources.media]
adapter = "files"
base = "base/media"

[resources.search]
adapter = "files"
base = "base/search"

[resources.site]
adapter = "web"
stack = "django"
settings = "notes.settings"
path = "{PROJECT}"
host = "notes.example"
durability = "derived"
depends_on = ["db", "media", "search"]
stores = {{ database = "db", media = "media", search = "search" }}
"""
COMMAND = [sys.executable, "-m", "django", "runserver", "--noreload", "--skip-checks", "{host}:{port}"]
ENVIRONMENT = {"NOTES_BASE": "{data}", "PYTHONPATH": str(PROJECT), "DJANGO_SETTINGS_MODULE": "notes.settings"}
PRIVATE = f"""
[contract]
name = "notes"

[resources.site]
adapter = "a-stack-that-is-not-here"
host = "notes.example"

[resources.site.private]
command = {json.dumps(COMMAND)}
base = "base"
ready = "http /notes/"
environment = {{ {", ".join(f'{name} = "{value}"' for name, value in ENVIRONMENT.items())} }}
"""


class Visitor:
    """Does things at an environment's base URL, and writes down what it sees."""

    def __init__(self, env: Environment) -> None:
        self._client = httpx.AsyncClient(base_url=env.base_url(), trust_env=False, timeout=60)
        self.seen: list[tuple[str, int, str]] = []

    async def get(self, path: str) -> None:
        answer = await self._client.get(path)
        self.seen.append((path, answer.status_code, answer.text))

    async def post(self, path: str, **fields: str) -> None:
        answer = await self._client.post(path, data=fields)
        self.seen.append((path, answer.status_code, answer.text))

    async def look_around(self) -> None:
        for path in ("/notes/", "/whoami/", "/media/hello.txt", "/site/", "/search/?q=lamp"):
            await self.get(path)
        await self._client.aclose()


async def observed(contract: Path, state: Path) -> list[tuple[str, int, str]]:
    """What visitors see in four environments with one past, and in one without."""
    async with statefork.open_engine(contract, state=state) as engine:
        one, other = await engine.create("one"), await engine.create("other")
        visitor = Visitor(one)
        await visitor.post("/login/", user="ada")
        await visitor.post("/add/", title="lamp", body="a lamp that is bright")
        await visitor.post("/add/", title="lamp")
        await visitor.post("/upload/", name="hello.txt", body="hello")
        saved = await one.snapshot()
        await visitor.post("/site/", name="renamed")
        left, right = await engine.fork(saved, n=2)
        seen = visitor.seen
        for number, env in enumerate((left, right)):
            child = Visitor(env)
            await child.post("/add/", title=f"child {number}")
            await child.look_around()
            seen += child.seen
        await visitor.look_around()
        await one.restore(saved)
        for env in (one, other):
            again = Visitor(env)
            await again.look_around()
            seen += again.seen
    assert statefork.audit(state, world=True).clean
    return seen


async def test_a_site_looks_the_same_on_either(notes_base: Path, tmp_path: Path) -> None:
    found = []
    for way, text in (("shared", SHARED), ("private", PRIVATE)):
        shutil.copytree(notes_base, tmp_path / way / "base")
        contract = tmp_path / way / "notes.toml"
        contract.write_text(text)
        found.append(await observed(contract, tmp_path / way / "state"))
    shared, private = found
    assert shared == private
    titles = [json.loads(text)["titles"] for path, _, text in shared if path == "/notes/"]
    assert titles == [["child 0", "first", "lamp"], ["child 1", "first", "lamp"], *[["first", "lamp"]] * 2, ["first"]]
