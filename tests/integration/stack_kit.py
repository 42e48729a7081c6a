"""Two real sites behind the server, used alike: as people use them, over HTTP, and with raw readers of their rows."""

from __future__ import annotations

import hashlib
import html
import re
import shutil
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.worlds.packages import installed, may_install
from tests.integration.postgres_kit import run

STACKS = Path(__file__).parent / "stacks"
WORLDS = Path(import_module("statefork.worlds").__file__ or "").parent


def picture(text: str) -> bytes:
    """A PNG of one pixel that holds a text."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = (
        chunk(b"IHDR", head),
        chunk(b"tEXt", b"Comment\0" + text.encode()),
        chunk(b"IDAT", zlib.compress(bytes(4))),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def fields(page: str, form: str) -> dict[str, str]:
    """The hidden fields of the form whose tag holds a text."""
    found = re.search(rf"<form[^>]*{re.escape(form)}[^>]*>(.*?)</form>", page, re.DOTALL)
    assert found is not None, f"no form {form!r} in {page[:2000]}"
    hidden = {}
    for tag in re.findall(r"<input[^>]*>", found.group(1)):
        given = dict(re.findall(r"(\w+)=[\"']([^\"']*)[\"']", tag))
        if given.get("type") == "hidden" and "name" in given:
            hidden[given["name"]] = html.unescape(given.get("value", ""))
    return hidden


class Site(Protocol):
    """What both are used for."""

    name: str
    package: str
    guards: dict[str, str]  # the guard that is taken away, and the check that then fails
    pages: tuple[str, ...]
    idle_work: str  # what the drain calls what ``later`` leaves

    async def login(self, client: httpx.AsyncClient) -> None: ...

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool: ...

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> str: ...

    async def found(self, client: httpx.AsyncClient, word: str) -> int: ...

    async def set_banner(self, client: httpx.AsyncClient, text: str) -> None: ...

    async def upload(self, client: httpx.AsyncClient, name: str, data: bytes) -> str: ...

    async def queue_jobs(self, client: httpx.AsyncClient, word: str) -> None: ...

    def texts(self, env: Environment, title: str) -> list[str]: ...

    def jobs_done(self, env: Environment, word: str) -> int: ...

    def told_later(self, env: Environment) -> str: ...


class Tracker:
    """Redmine."""

    name = "tracker"
    package = "redmine"
    guards: ClassVar = {
        "connections": "separate",
        "settings": "separate",
        "caches": "separate",
        "uploads": "separate",
        "jobs": "jobs",
        "threads": "work",
        "release": "nothing_stays",
    }
    pages = ("/", "/projects", "/issues", "/projects/search", "/projects/search/wiki", "/news", "/activity", "/admin")
    idle_work = "thread what GET /checked/later left to do"

    async def login(self, client: httpx.AsyncClient) -> None:
        form = fields((await client.get("/login")).text, 'action="/login"')
        await client.post("/login", data={**form, "username": "admin", "password": "admin1234"})
        assert await self.is_logged_in(client)

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return (await client.get("/my/page")).url.path == "/my/page"

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> str:
        return await self._add(client, title, text, watched=False)

    async def _add(self, client: httpx.AsyncClient, title: str, text: str, *, watched: bool) -> str:
        """Its watchers get letters of it."""
        page = (await client.get("/projects/search/issues/new")).text
        form: dict[str, str | list[str]] = {**fields(page, 'id="issue-form"')}
        if watched:
            form["issue[watcher_user_ids][]"] = re.findall(r'name="issue\[watcher_user_ids\]\[\]" value="(\d+)"', page)
        form |= {"issue[tracker_id]": "1", "issue[status_id]": "1", "issue[priority_id]": "2"}
        form |= {"issue[subject]": title, "issue[description]": text}
        made = await client.post("/projects/search/issues", data=form)
        assert re.fullmatch(r"/issues/\d+", made.url.path), made.text
        return made.url.path

    async def found(self, client: httpx.AsyncClient, word: str) -> int:
        """The second page is made from what the first has left in the cache."""
        await client.get("/search", params={"q": word, "all_words": "1"})
        page = await client.get("/search", params={"q": word, "all_words": "1", "page": "1"})
        return int((re.search(r"<h3>Results\s*\((\d+)\)", page.text) or ["", "0"])[1])

    async def set_banner(self, client: httpx.AsyncClient, text: str) -> None:
        form = fields((await client.get("/settings")).text, "/settings/edit")
        await client.post("/settings/edit", data={**form, "settings[app_title]": text})

    async def upload(self, client: httpx.AsyncClient, name: str, data: bytes) -> str:
        form = fields((await client.get("/projects/search/files/new")).text, "/projects/search/files")
        files = {"attachments[1][file]": (name, data, "image/png")}
        listed = await client.post("/projects/search/files", data=form, files=files)
        found = re.search(rf'href="(/attachments/download/\d+/{re.escape(name)})"', listed.text)
        assert found is not None, listed.text
        return found.group(1)

    async def queue_jobs(self, client: httpx.AsyncClient, word: str) -> None:
        """All members of the project watch each issue, and are written to by jobs."""
        for number in range(3):
            await self._add(client, f"{word} {number}", "a letter about this", watched=True)

    def texts(self, env: Environment, title: str) -> list[str]:
        return [row[0] for row in run(env, "SELECT description FROM issues WHERE subject = %s", title)]

    def jobs_done(self, env: Environment, word: str) -> int:
        outbox = Path(str(env.bindings["media"].address["path"])) / "outbox"
        letters = [letter.read_text(errors="replace") for letter in outbox.glob("*.eml")]
        return sum("Subject: [Search - Bug #" in letter and word in letter for letter in letters)

    def told_later(self, env: Environment) -> str:
        return "".join(row[0] for row in run(env, "SELECT value FROM settings WHERE name = 'welcome_text'"))


class Wiki:
    """MediaWiki."""

    name = "wiki"
    package = "mediawiki"
    guards: ClassVar = {
        "connections": "separate",
        "caches": "separate",
        "uploads": "separate",
        "jobs": "jobs",
        "threads": "work",
        "release": "nothing_stays",
    }
    pages = ("/", "/wiki/Special:RecentChanges", "/wiki/Special:AllPages", "/wiki/Special:ListFiles", "/wiki/Used-lamp")
    idle_work = "thread what GET /checked/later left to do"

    async def login(self, client: httpx.AsyncClient) -> None:
        form = fields((await client.get("/index.php?title=Special:UserLogin")).text, 'name="userlogin"')
        form |= {"wpName": "Admin", "wpPassword": "admin-of-the-wiki"}
        await client.post("/index.php?title=Special:UserLogin", data=form)
        assert await self.is_logged_in(client)

    async def is_logged_in(self, client: httpx.AsyncClient) -> bool:
        return '"wgUserName":"Admin"' in (await client.get("/wiki/Main_Page")).text

    async def add(self, client: httpx.AsyncClient, title: str, text: str) -> str:
        form = fields((await client.get(f"/index.php?title={title}&action=edit")).text, 'name="editform"')
        form |= {"wpTextbox1": text, "wpSave": "Save page"}
        saved = await client.post(f"/index.php?title={title}&action=submit", data=form)
        assert saved.url.path.lower() == f"/wiki/{title}".lower(), saved.text
        return f"/wiki/{title}"

    async def found(self, client: httpx.AsyncClient, word: str) -> int:
        page = await client.get("/index.php", params={"search": word, "fulltext": "1"})
        return page.text.count('class="mw-search-result-heading"')

    async def set_banner(self, client: httpx.AsyncClient, text: str) -> None:
        await self.add(client, "MediaWiki:Sitenotice", text)

    async def upload(self, client: httpx.AsyncClient, name: str, data: bytes) -> str:
        form = fields((await client.get("/wiki/Special:Upload")).text, 'id="mw-upload-form"')
        form |= {
            "wpDestFile": name,
            "wpUploadDescription": "a picture",
            "wpIgnoreWarning": "1",
            "wpUpload": "Upload file",
        }
        files = {"wpUploadFile": (name, data, "image/png")}
        await client.post("/wiki/Special:Upload", data=form, files=files)
        name = name[0].upper() + name[1:]
        place = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        return f"/images/{place[0]}/{place[:2]}/{name}"

    async def queue_jobs(self, client: httpx.AsyncClient, word: str) -> None:
        """Every page that uses the template is to be linked anew, by jobs."""
        await self.add(client, "Template:Stub", f"[[Category:{word}]]")

    def texts(self, env: Environment, title: str) -> list[str]:
        statement = """
            SELECT old_text FROM mediawiki.page JOIN mediawiki.slots ON slot_revision_id = page_latest
            JOIN mediawiki.content ON content_id = slot_content_id
            JOIN mediawiki.text ON 'tt:' || old_id = content_address WHERE lower(page_title) = lower(%s)"""
        return [row[0] for row in run(env, statement, title)]

    def jobs_done(self, env: Environment, word: str) -> int:
        assert run(env, "SELECT count(*) FROM mediawiki.job") == [(0,)], "jobs were queued and not run"
        statement = "SELECT count(*) FROM mediawiki.categorylinks WHERE lower(cl_to) = lower(%s)"
        return int(run(env, statement, word)[0][0])

    def told_later(self, env: Environment) -> str:
        return "".join(row[0] for row in run(env, "SELECT si_key FROM mediawiki.site_identifiers"))


def is_uploaded(env: Environment, data: bytes) -> bool:
    """Whether a file among the environment's uploads holds just that."""
    uploads = Path(str(env.bindings["media"].address["path"]))
    return any(path.read_bytes() == data for path in uploads.rglob("*") if path.is_file())


def missing(site: Site) -> str:
    """Why its world can't be built here without installing something; empty when it can."""
    here = installed(site.package) or may_install()
    return "" if here else f"needs Debian's package {site.package}, which only root may install"


class Stage:
    """A site's world with the tests' own pages, its engine, and the clients of its environments."""

    def __init__(self, site: Site, engine: Engine, directory: Path) -> None:
        self.site = site
        self.engine = engine
        self.directory = directory
        self.web: Any = engine.kernel.resources[site.name]

    @asynccontextmanager
    async def client(self, env: Environment) -> AsyncIterator[httpx.AsyncClient]:
        """Somebody at the environment's base URL."""
        address = env.base_url(self.site.name)
        async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False, follow_redirects=True) as client:
            yield client

    async def ask(self, client: httpx.AsyncClient, name: str, **asked: str) -> Any:
        """One of the tests' own pages."""
        answer = await client.get(f"/checked/{name}", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def staged(site: Site, directory: Path) -> AsyncIterator[Stage]:
    """Start the world's server, with the tests' pages beside the site's."""
    build = import_module(f"statefork.worlds.{site.name}.build")
    base = build.cached(lambda fraction, text: None)
    shutil.copytree(base, directory / "base")
    place = directory / "base" / "site"
    for file in STACKS.iterdir():
        shutil.copy(file, place)
    described = (place / "site.toml").read_text()
    described = described.replace("redmine.rb", "checked.rb").replace("/LocalSettings.php", "/CheckedSettings.php")
    described = described.replace("[scripts]", '[scripts]\n"/checked/" = "$site/checked.php"')
    (place / "site.toml").write_text(described)
    contract = (WORLDS / site.name / f"{site.name}.toml").read_text()
    contract = re.sub(r"^build = .*$", "", contract, flags=re.MULTILINE)
    contract = re.sub(r"^\[resources\.browser\].*?(?=^\[|\Z)", "", contract, flags=re.MULTILINE | re.DOTALL)
    (directory / "base" / "world.toml").write_text(contract)
    async with open_engine(directory / "base" / "world.toml", state=directory / "state") as engine:
        yield Stage(site, engine, directory)
