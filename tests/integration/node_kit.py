"""express-admin, unmodified, on one node behind the server: installed once into the user's cache, by npm."""

from __future__ import annotations

import functools
import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.adapters.resources.web.behind.node import HOOKS
from statefork.worlds.making import cache_place, digest_of, in_cache, whole
from statefork.worlds.packages import install, may_install

SITE = Path(__file__).parent / "nodesite"
PACKAGES = ("nodejs", "npm")
CONTRACT = """
[contract]
name = "admin"

[resources.db]
adapter = "postgres"
base = "site/db.sql"
durability = "authoritative"
pool = 2
settings = { shared_buffers = "32MB", max_wal_size = "64MB", min_wal_size = "32MB" }

[resources.media]
adapter = "files"
base = "media"
durability = "authoritative"

[resources.admin]
adapter = "web"
stack = "node"
settings = "site.toml"
path = "site"
host = "admin.example"
durability = "derived"
grace_s = 0.2
depends_on = ["db", "media"]
stores = { database = "db", media = "media" }
"""


@functools.cache
def missing() -> str:
    """Why there can be no node here; empty when it is there, or can be installed."""
    here = shutil.which("node") and shutil.which("npm")
    return "" if here or may_install() else f"this needs {' and '.join(PACKAGES)}, which only root may install"


def installed() -> Path:
    """The directory with the packages that the lock names."""
    if not (shutil.which("node") and shutil.which("npm")):
        install(PACKAGES, lambda fraction, text: None, world="admin")
    files = [SITE / "package.json", SITE / "package-lock.json"]
    place = cache_place(f"express-admin-{digest_of(files, {})[:12]}")
    return in_cache(place, _install, lambda fraction, text: None)


def _install(place: Path, progress: Any) -> None:
    with whole(place) as directory:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SITE / name, directory)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr


def record(root: Path, site: Path, server: str) -> None:
    """Note what the application asks of its database when it starts, in a database with the base."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("CREATE DATABASE admin")
        info = admin.info
        try:
            with psycopg.connect(server, dbname="admin", autocommit=True) as base:
                base.execute((SITE / "db.sql").read_bytes())
            where = {"PGHOST": info.host, "PGPORT": str(info.port), "PGUSER": info.user, "PGPASSWORD": info.password}
            ours = {"NODE_PATH": str(root / "node_modules"), "STATEFORK_HOOKS": str(HOOKS), "TMPDIR": str(site)}
            environment = {**os.environ, **where, **ours}
            command = ["node", str(HOOKS / "record.js"), str(site / "site.js"), str(site / "answers.json")]
            subprocess.run(command, env=environment, cwd=root, check=True, timeout=60)
        finally:
            admin.execute("DROP DATABASE admin WITH (FORCE)")
    assert json.loads((site / "answers.json").read_text())


class Admin:
    """Somebody at the admin's pages."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def login(self) -> None:
        """As the one user that there is."""
        page = await self.client.get("/login")
        form = {"username": "admin", "password": "admin-of-the-tests", "_csrf": token(page.text)}
        await self.client.post("/login", data=form)
        assert await self.is_logged_in()

    async def is_logged_in(self) -> bool:
        """Whether the list of tables is shown."""
        return (await self.client.get("/")).url.path != "/login"

    async def add(self, title: str, body: str, picture: bytes) -> None:
        """A note with a picture, by the form: a body of several parts."""
        page = (await self.client.get("/notes/add")).text
        record = "view[notes][records][0]"
        form = {
            f"{record}[insert]": "true",
            f"{record}[columns][title]": title,
            f"{record}[columns][body]": body,
            "action[save]": "",
            "_csrf": token(page),
        }
        files = {f"{record}[columns][picture]": ("lamp.png", picture, "image/png")}
        saved = await self.client.post("/notes/add", data=form, files=files)
        assert saved.status_code == 200, saved.text
        assert saved.url.path == "/notes", saved.text

    async def find(self, word: str) -> int:
        """How many notes the list's filter finds; it is kept in the session."""
        page = (await self.client.get("/notes")).text
        form = {"filter[body]": word, "order": "", "direction": "", "action[filter]": "", "_csrf": token(page)}
        found = (await self.client.post("/notes", data=form)).text
        page = (await self.client.get("/notes")).text
        await self.client.post("/notes", data={"action[clear]": "", "_csrf": token(page)})
        return len(re.findall(r'href="/notes/\d+"', found))


def token(page: str) -> str:
    """The form's proof that it is the site's own."""
    found = re.search(r'name="_csrf" value="([^"]*)"', page)
    assert found is not None, page
    return html.unescape(found.group(1))


class Stage:
    """The admin's engine, and the clients of its environments."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.web: Any = engine.kernel.resources["admin"]

    @asynccontextmanager
    async def client(self, env: Environment) -> AsyncIterator[httpx.AsyncClient]:
        """Somebody at the environment's base URL."""
        address = env.base_url("admin")
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False, follow_redirects=True) as client:
            yield client

    async def ask(self, client: httpx.AsyncClient, name: str, **asked: str) -> Any:
        """One of the tests' own pages."""
        answer = await client.get(f"/checked/{name}", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def staged(directory: Path, server: str) -> AsyncIterator[Stage]:
    """The admin's server, with no environment yet. ``server`` is where its start is recorded."""
    root = installed()
    site = directory / "base" / "site"
    shutil.copytree(SITE, site)
    (directory / "base" / "media").mkdir()
    (site / "site.toml").write_text((site / "site.toml").read_text().replace("$root", str(root)))
    record(root, site, server)
    (directory / "base" / "admin.toml").write_text(CONTRACT)
    async with open_engine(directory / "base" / "admin.toml", state=directory / "state") as engine:
        yield Stage(engine, directory)
