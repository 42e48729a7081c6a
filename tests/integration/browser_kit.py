"""What the browser's tests stand on: a small real site, a blob store in memory, and raw looks into the live pages.

The raw looks evaluate scripts of the tests' own on Playwright's page objects: nothing of the capture or restore under
test has a part in them.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from statefork.adapters.resources.browser import Options
from statefork.adapters.resources.browser.bridge import AsyncioThread
from statefork.adapters.resources.browser.host import BrowserHost
from statefork.adapters.resources.browser.resource import BrowserResource
from statefork.engine.ports import Needs, Owner, Route, Services
from statefork.journal.values import Binding, Branch, Identity, Sealed

PAGES = Path(__file__).parent / "browser_pages"
SCRIPTS = Path(__file__).parent / "browser_scripts"


def script(name: str) -> str:
    """A script of the tests' own."""
    return (SCRIPTS / f"{name}.js").read_text()


class MemoryBlobs:
    """A content-addressed store."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.data[digest] = data
        return digest

    def get(self, digest: str) -> bytes:
        return self.data[digest]


class Site:
    """A real HTTP server: files of ``browser_pages`` and a few answers made here. It also answers as a proxy."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.base = f"http://127.0.0.1:{port}"
        self.other = f"http://localhost:{port}"  # another origin of the same server
        self.log: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.failing = False  # every page answers 503
        self.asked = threading.Event()  # /slow was asked for
        self.release = threading.Event()  # lets answers of /slow go

    def paths(self, *, method: str = "GET") -> list[str]:
        """Requests seen, without what Chromium asks for by itself."""
        return [path for verb, path in self.log if verb == method and "favicon" not in path]


def _handler(site: Callable[[], Site]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, body: bytes, kind: str = "text/html", status: int = 200, **headers: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            site().log.append(("POST", urlsplit(self.path).path))
            site().bodies.append(body)
            shown = body.decode(errors="replace").replace("<", "&lt;")
            self.answer(f"<title>received</title><h1>received {shown}</h1><input id=note>".encode())

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            site().log.append(("GET", path))
            page = PAGES / path.lstrip("/")
            match path:
                case _ if site().failing:
                    self.answer(b"<title>down</title>", status=503)
                case "/login":
                    cookie = "session=alice; Path=/; HttpOnly; Max-Age=86400"
                    self.answer(b"<title>in</title>logged in", Set_Cookie=cookie)
                case "/back-to-second":
                    self.answer(b"", status=302, Location="/second")
                case "/framing":
                    frame = '<iframe name=f src="/inner.html"></iframe><a id=on target=f href="/second">on</a>'
                    self.answer(f"<title>framing</title>{frame}".encode())
                case "/once":
                    times = site().log.count(("GET", "/once"))
                    self.answer(f"<title>once</title><p>asked {times} times".encode(), Set_Cookie=f"asked={times}")
                case "/token":
                    times = site().log.count(("GET", "/token"))
                    self.answer(f"<title>form</title><body data-token={times}>form".encode())
                case "/counted":
                    self.answer(b"<title>counted</title><p>counted", Set_Cookie=f"hits={len(site().log)}; Path=/")
                case "/slow":
                    site().asked.set()
                    site().release.wait(30)
                    self.answer(b"slow", "text/plain")
                case "/when-slow-was-asked":
                    site().asked.wait(30)
                    self.answer(b"now", "text/plain")
                case "/file":
                    self.answer(b"the invoice", "application/pdf", Content_Disposition="attachment; filename=bill.pdf")
                case _ if page.is_file():
                    kind = {".js": "text/javascript", ".html": "text/html"}[page.suffix]
                    self.answer(page.read_bytes(), kind)
                case _:
                    self.answer(f"<title>{path}</title><p>page {path}".encode())

    return Handler


@contextmanager
def serving() -> Iterator[Site]:
    """The site, on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(lambda: site))
    server.daemon_threads = True
    site = Site(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Door:
    """A proxy door that leads straight to the site: enough of a gateway for the browser's side of it."""

    def __init__(self, port: int, identity: Identity) -> None:
        self.host = "127.0.0.1"
        self.port = port
        self.identity = identity
        self.base_url = f"http://127.0.0.1:{port}"
        self.open = True

    async def close(self) -> None:
        self.open = False


class DoorGateway:
    """Opens such doors and remembers them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.doors: list[Door] = []

    async def open_proxy(self, identity: Identity, routes: tuple[Route, ...]) -> Door:
        self.doors.append(Door(self.port, identity))
        return self.doors[-1]


class Kit:
    """A started browser resource, with short ways to the things that every test does."""

    def __init__(self, resource: BrowserResource, blobs: MemoryBlobs) -> None:
        self.resource = resource
        self.blobs = blobs
        self._activation = 0

    async def fresh(self, env: str = "e") -> tuple[Branch, Binding]:
        """A bound branch of the empty profile."""
        return await self.fork(await self.resource.provision(), env)

    async def fork(self, sealed: Sealed, env: str = "f") -> tuple[Branch, Binding]:
        """A bound branch of a version."""
        branch = await self.resource.branch(sealed, Owner(env=env, epoch=1))
        self._activation += 1
        identity = Identity(env=env, epoch=1, activation=self._activation)
        return branch, await self.resource.bind(branch, identity, Needs())

    async def unprepared(self) -> None:
        """Away with the context that was made in advance, so that contexts and processes can be counted."""
        assert self.resource._host is not None
        await self.on_thread(self.resource._host.reserve.close)

    async def act(self, binding: Binding, action: Any) -> Any:
        return await self.resource.act(binding, action.to_json())

    async def seal(self, branch: Branch) -> Sealed:
        """One cut, as the conductor makes it."""
        await self.resource.quiesce(branch)
        try:
            before = await self.resource.write_mark(branch)
            sealed = await self.resource.seal(branch)
            assert await self.resource.write_mark(branch) == before
        finally:
            await self.resource.thaw(branch)
        return sealed

    def live(self, branch: Branch) -> Any:
        session = self.resource._open[branch.id].session
        assert session is not None
        return session.live

    async def on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self.resource._thread.call(function, *args)

    async def raw(self, branch: Branch, expression: str, argument: Any = None, *, tab: int = 0) -> Any:
        """Evaluate in a tab of the live context, with Playwright's own page object."""
        return await self.on_thread(self.live(branch).context.pages[tab].evaluate, expression, argument)

    async def cookies(self, branch: Branch) -> list[Mapping[str, Any]]:
        return list(await self.on_thread(self.live(branch).context.cookies))


class GuestResource(BrowserResource):
    """The resource under test on a Chromium that it shares with other tests; all else is its own."""

    async def start(self) -> None:
        if self._host is None:
            self._thread, self._host = await SHARED.open()

    async def stop(self) -> None:
        if self._host is not None:
            for entry in list(self._open.values()):
                await self._close(entry)
            await self._thread.call(self._host.reserve.close)
            self._host = None


class SharedChromium:
    """One Chromium for the tests of this process that need not kill or restart it."""

    def __init__(self) -> None:
        self._owner: BrowserResource | None = None
        self._folder: Path | None = None

    async def open(self) -> tuple[AsyncioThread, BrowserHost]:
        if self._owner is None:
            self._folder = Path(tempfile.mkdtemp(prefix="statefork-test-"))
            services = Services(state=self._folder, journal="shared", blobs=MemoryBlobs(), base_dir=self._folder)
            self._owner = BrowserResource("browser", Options(), services)
        await self._owner.start()
        assert self._owner._host is not None
        return self._owner._thread, self._owner._host

    def close(self) -> None:
        """At the end of the session, outside any event loop."""
        owner, folder = self._owner, self._folder
        self._owner = self._folder = None
        if owner is not None and folder is not None:
            anyio.run(owner.stop)
            shutil.rmtree(folder)


SHARED = SharedChromium()


@asynccontextmanager
async def browser(
    state: Path, *, own: bool = False, start: str = "about:blank", gateway: Any = None, **options: Any
) -> AsyncIterator[Kit]:
    """A browser resource that is stopped at the end; with ``own`` on a Chromium of its own."""
    blobs = MemoryBlobs()
    services = Services(state=state, journal="journal-1", blobs=blobs, gateway=gateway, base_dir=state)
    settings = Options(start=start, **options)
    resource = BrowserResource("browser", settings, services) if own else GuestResource("browser", settings, services)
    await resource.start()
    try:
        yield Kit(resource, blobs)
    finally:
        await resource.stop()
