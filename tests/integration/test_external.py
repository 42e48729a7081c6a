"""Hosts outside of the world: a page asks them, what they answer is recorded, and a re-execution asks nobody."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine, open_engine
from statefork.engine.errors import Diverged
from statefork.journal.events import ExchangeRecorded, RequestRefused

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

PAGE = b"""<title>page</title><input id=path><button id=get onclick="get(path.value)">get</button>
<button id=b onclick="more()">more</button><button id=p onclick="post()">post</button>
<button id=now onclick="get('/count?' + performance.now())">now</button>
<button id=ws onclick="streams()">streams</button>
<button id=report onclick="show(said.join())">report</button><p id=done hidden aria-hidden=true>done</p>
<ul id=list></ul><script src=/lib.js></script><script>
async function more() { for (let i = 0; i < 2; i++) await get("/count"); }
async function post() {
    const form = new FormData();
    form.append("word", say());
    show(await (await fetch("/echo", {method: "POST", body: form})).text());
}
async function get(url) {
    try { const answer = await fetch(url); show(answer.status + " " + await answer.text()); }
    catch (error) { show("no answer"); }
}
const said = [];
async function streams() {
    await new Promise(end => new WebSocket(location.origin.replace("http", "ws") + "/ws").onclose = end);
    said.push("closed");
    const events = new EventSource("/events");
    await new Promise(end => events.onerror = end);
    said.push(events.readyState);
    const code = `fetch("${location.origin}/worker").then(answer => postMessage(answer.status))`;
    const worker = new Worker(URL.createObjectURL(new Blob([code])));
    said.push(await new Promise(end => worker.onmessage = event => end(event.data)));
    done.hidden = false;
}
function show(text) { list.append(Object.assign(document.createElement("li"), {textContent: text})); }
</script>"""
MORE, POST, NOW, WS, REPORT = ({"type": "click", "selector": f"#{name}"} for name in ("b", "p", "now", "ws", "report"))
STREAMS = [WS, {"type": "wait", "selector": "#done"}, REPORT]  # nothing of it is seen before it is over


def get(url: str) -> list[dict[str, str]]:
    """Actions by which the page asks for an address."""
    return [{"type": "fill", "selector": "#path", "value": url}, {"type": "click", "selector": "#get"}]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Host:
    """A host that counts what it is asked."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        self.word = "one"  # what its script makes pages say


def _handler(host: list[Host]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, body: bytes, kind: str = "text/html", status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            host[0].asked.append(f"GET {self.path}")
            match self.path:
                case "/":
                    self.answer(PAGE)
                case "/lib.js":
                    self.answer(f"say = () => '{host[0].word}'".encode(), "text/javascript", ETag='"1"')
                case "/away":
                    self.answer(b"", status=302, Location="/")
                case "/gone":
                    self.close_connection = True
                case _:
                    self.answer(f"answer {len(host[0].asked)}".encode(), "text/plain")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            host[0].asked.append(f"POST {self.path}")
            said = b"one" if b"one" in body else b"nothing"
            self.answer(b"received " + said + f" {len(host[0].asked)}".encode(), "text/plain")

    return Handler


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Host]:
    """The host, until the body ends: afterwards nothing answers there."""
    hosts: list[Host] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hosts))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    hosts.append(Host(server.server_address[1]))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hosts[0]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certified(name: str, file: Path) -> Path:
    """A key and a certificate that proves a name to those who trust it."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    certificate = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(private + certificate.public_bytes(pem))
    return file


@asynccontextmanager
async def running(
    folder: Path, external: Sequence[str], determinism: str = "record", start: str = "about:blank"
) -> AsyncIterator[Engine]:
    (folder / "outside.toml").write_text(
        f'[contract]\nname = "outside"\ndeterminism = "{determinism}"\n'
        f'[resources.browser]\nadapter = "browser"\nscreenshots = false\nexternal = {list(external)}\n'
        f'start = "{start}"\n'
    )
    async with open_engine(folder / "outside.toml", state=folder / "state") as engine:
        yield engine


async def exchanges(engine: Engine, env: str) -> list[ExchangeRecorded]:
    await engine.journal.flush()
    events = [record.event async for record in engine.journal.read(stream=f"act/{env}")]
    return [event for event in events if isinstance(event, ExchangeRecorded)]


async def told(env: Environment, *actions: dict[str, str]) -> list[str]:
    return [(await env.act(action)).text for action in actions]


async def test_what_was_answered_is_given_back_and_nobody_is_asked(tmp_path: Path) -> None:
    with serving() as host:
        goto = {"type": "goto", "url": f"{host.base}/away"}
        async with running(tmp_path, [host.base], start=host.base) as engine:
            env = await engine.create("a")
            seen = await told(env, goto, MORE, MORE, POST)
            assert "answer 6" in seen[1]
            assert "received one 10" in seen[3]
            asked = list(host.asked)
            (child,) = await engine.fork("a#3")
            assert child.made is not None
            assert (child.made.verdict, child.made.unasked) == ("exact-observed", ())
            assert host.asked == asked, "a moment is made without asking anybody"
            assert (await child.observe()).text == seen[2]
            (future,) = await told(child, POST)
            assert "received one 11" in future, "its future asks by itself"
            recorded = await exchanges(engine, "a")
            assert [f"{event.method} {event.url}" for event in recorded] == [
                line.replace("/", f"{host.base}/", 1) for line in asked
            ]
            assert {(event.generation, event.epoch, event.activation, event.given) for event in recorded} == {
                (1, 1, 1, False)
            }
            assert [event.cause for event in recorded] == ["binding"] * 2 + ["action"] * (len(recorded) - 2)
            assert [event.given for event in await exchanges(engine, child.name)] == [True] * 9 + [False]
    async with running(tmp_path, [host.base], start=host.base) as engine:  # the host has gone
        shown = (await engine.environment("a").observe()).text
        assert "streams" in shown, "its page is loaded again from what was recorded"
        for name in ("a", child.name):
            result = await engine.replay(name, states=False)
            assert (result.verdict, result.first_divergence, result.unasked) == ("exact-observed", 0, ())


async def test_what_was_not_asked_then_is_refused_and_named(tmp_path: Path) -> None:
    with serving() as host:
        async with running(tmp_path, [host.base]) as engine:
            env = await engine.create("a")
            await told(env, {"type": "goto", "url": host.base}, MORE, NOW, MORE)
            asked = list(host.asked)
            with pytest.raises(Diverged) as caught:
                await engine.fork("a#4")
            assert host.asked == asked
            made = caught.value.result
            assert made is not None
            assert made.divergence is not None
            assert made.first_divergence == 3
            url = f"{host.base}/count?"
            assert made.divergence.what.startswith(f"a page asked GET {url}")
            assert made.divergence.what.endswith("which was not asked when it was recorded")
            assert [line.split("?")[0] for line in made.unasked] == [f"GET {url[:-1]}"]
            records = [record.event async for record in engine.journal.read(stream=f"act/{made.child}")]
            (refused,) = [event for event in records if isinstance(event, RequestRefused)]
            assert (refused.code, refused.status) == ("not_recorded", 502)
            assert "200 answer" in (await told(engine.environment(made.child), NOW))[0], "who looks into it may go on"


async def test_only_listed_origins_are_reached_and_what_fails_fails_again(tmp_path: Path) -> None:
    with serving() as host:
        other = host.base.replace("127.0.0.1", "localhost")
        async with running(tmp_path, [host.base]) as engine:
            env = await engine.create("a")
            seen = await told(env, {"type": "goto", "url": host.base}, *get(f"{other}/count"), *get("/gone"), *STREAMS)
            assert "no answer" in seen[2]
            assert "502" in seen[4]
            assert "closed,2,200" in seen[7]
            assert host.asked == ["GET /", "GET /lib.js", "GET /gone", "GET /worker"]
            assert [event.error for event in await exchanges(engine, "a") if event.error] == [
                "it closed the connection without a whole answer"
            ]
            (child,) = await engine.fork("a#8")
            assert child.made is not None
            assert child.made.verdict == "exact-observed"
            assert len(host.asked) == 4
            (sealed,) = await engine.fork("a")
            assert "streams" in (await sealed.observe()).text
            assert len(host.asked) == 4, "a page is brought back as its source was shown"
            assert {(event.cause, event.given) for event in await exchanges(engine, sealed.name)} == {("binding", True)}


async def test_a_host_with_https_has_to_prove_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = certified("localhost", tmp_path / "pair.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    with serving(context) as host:
        named, numbered = (
            host.base.replace("http://127.0.0.1", f"https://{name}") for name in ("localhost", "127.0.0.1")
        )
        goto = {"type": "goto", "url": named}
        async with running(tmp_path, [named]) as engine:
            env = await engine.create("a")
            await told(env, goto)
            assert host.asked == []
            monkeypatch.setenv("SSL_CERT_FILE", str(pair))
            seen = await told(env, goto, MORE, *STREAMS, *get(f"{numbered}/"))
            assert "200 answer 4" in seen[1]
            assert "closed,2,200" in seen[4]
            assert "no answer" in seen[6]
            asked = list(host.asked)
            first, *_ = await exchanges(engine, "a")
            assert (first.url, first.status) == (f"{named}/", 0)
            assert "certificate verify failed" in first.error
            (child,) = await engine.fork("a#8")
            assert child.made is not None
            assert child.made.verdict == "exact-observed"
            assert host.asked == asked


async def test_without_determinism_all_passes_and_nothing_is_recorded(tmp_path: Path) -> None:
    with serving() as host:
        async with running(tmp_path, [host.base], "off") as engine:
            env = await engine.create("a")
            assert "answer 3" in (await told(env, {"type": "goto", "url": host.base}, MORE))[1]
            assert await exchanges(engine, "a") == []
            asked = list(host.asked)
            assert (await engine.replay("a")).first_divergence == 1
            assert host.asked == asked, "doing it again asks nobody here either"
