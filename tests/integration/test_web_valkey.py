"""A Django project with its cache and sessions on a Valkey server: logins follow their environment, caches do not."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import statefork
from statefork.engine.errors import StateforkError
from tests.contract.valkey_kit import missing_valkey
from tests.integration.web_kit import PROJECT, build_base

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(missing_valkey()), reason=missing_valkey() or "the server is here"),
]

CONTRACT = f"""
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
[resources.cache]
adapter = "valkey"
durability = "ephemeral"
[resources.sessions]
adapter = "valkey"
[resources.site]
adapter = "web"
stack = "django"
settings = "notes.on_valkey"
host = "notes.example"
path = "{PROJECT}"
threads = 4
durability = "derived"
depends_on = ["db", "media", "search", "cache", "sessions"]
[resources.site.stores]
database = "db"
media = "media"
search = "search"
cache = "cache"
"cache.sessions" = "sessions"
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    build_base(tmp_path / "base")
    file = tmp_path / "notes.toml"
    file.write_text(CONTRACT)
    return file


class Visitor:
    """A person with one cookie jar, whose cookies are what the environment's browser would have."""

    def __init__(self, cookies: dict[str, str] | None = None) -> None:
        self.cookies = cookies or {}

    async def ask(self, env: statefork.Environment, path: str, **data: str) -> str:
        async with httpx.AsyncClient(base_url=env.base_url(), cookies=self.cookies, trust_env=False) as client:
            answer = await (client.post(path, data=data) if data else client.get(path))
            assert answer.status_code == 200, answer.text
            self.cookies |= dict(answer.cookies)
            return answer.text


async def test_logins_survive_reset_restore_and_fork_and_caches_do_not(contract: Path) -> None:
    async with statefork.open_engine(contract, state=contract.with_name("state")) as engine:
        a, b = await engine.create("a"), await engine.create("b")
        ann, bob = Visitor(), Visitor()
        await ann.ask(a, "/login/", user="ann")
        await ann.ask(a, "/cache/", value="of a")
        await bob.ask(b, "/login/", user="bob")
        await bob.ask(b, "/cache/", value="of b")
        assert (await ann.ask(a, "/whoami/"), await bob.ask(b, "/whoami/")) == ("ann", "bob")
        assert await Visitor(ann.cookies).ask(b, "/whoami/") != "ann"
        logged_in = await a.snapshot()
        assert "of a" in await ann.ask(a, "/cache/")

        await Visitor(ann.cookies).ask(a, "/login/", user="eve")
        (child,) = await engine.fork(logged_in, n=1)
        await a.restore(logged_in)
        for env in (a, child):
            assert await Visitor(ann.cookies).ask(env, "/whoami/") == "ann"
            assert "of a" not in await Visitor(ann.cookies).ask(env, "/cache/")
        await a.reset()
        assert await Visitor(ann.cookies).ask(a, "/whoami/") != "ann"
        assert "of b" in await bob.ask(b, "/cache/")
    report = statefork.audit(contract.with_name("state"))
    assert report.clean, report


@pytest.fixture
def forgetful(contract: Path) -> Path:
    contract.write_text(CONTRACT.replace('"cache.sessions" = "sessions"', '"cache.sessions" = "cache"'))
    return contract


async def test_sessions_in_what_is_emptied_are_refused(forgetful: Path) -> None:
    async with statefork.open_engine(forgetful, state=forgetful.with_name("state")) as engine:
        with pytest.raises(StateforkError, match="empty after each switch"):
            await engine.create("a")
