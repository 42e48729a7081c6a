"""What a private backend with a user of its own may do to the engine, to its siblings and to the machine: nothing.

Each test runs an engine with its control door and two environments, and lets the backend of one try, as the user that
it is. ``docs/security.md`` lists every attempt.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest

import statefork
from statefork.adapters.interfaces.control.address import socket_path
from statefork.adapters.interfaces.control.server import serve_control
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.engine.errors import TransitionAborted
from statefork.journal.events import GenerationPublished
from tests.contract.process_kit import until
from tests.contract.sqlite_kit import make_base
from tests.integration.fences_kit import forbidden

PYTHON = "/usr/bin/python3"
SERVER = Path(__file__).with_name("hostile_backend.py")
PROCESSES_MAX = 32
USUAL: dict[str, str | int] = {"processes_max": PROCESSES_MAX, "max_bytes": 0, "network": "machine", "cut": "freeze"}
CONTRACT = """
[contract]
name = "fenced"
[resources.db]
adapter = "sqlite"
base = "db.sqlite3"
[resources.media]
adapter = "files"
base = "media"
[resources.tracker]
adapter = "process"
command = {command}
base = "base"
host = "tracker.example"
ready = "http /alive"
settle_s = 0.0
user = "own"
processes_max = {processes_max}
max_bytes = {max_bytes}
network = "{network}"
cut = "{cut}"
"""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.root,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="the tests' own Python may be where only root may go"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (Path(folder), *Path(folder).parents[:1]):
            path.chmod(0o711)
        yield Path(folder)


class Fenced:
    """Environments ``a``, who tries, and ``b``."""

    def __init__(self, engine: Engine, a: Environment, b: Environment) -> None:
        self.engine = engine
        self.a = a
        self.b = b

    async def ask(self, env: Environment, method: str, path: str, content: str = "") -> httpx.Response:
        async with httpx.AsyncClient(base_url=env.base_url(), trust_env=False, timeout=30) as client:
            return await client.request(method, path, content=content)

    async def attempts(self, *tried: list[Any]) -> dict[str, str]:
        """What came of each."""
        answer = await self.ask(self.a, "POST", "/try", json.dumps(tried))
        return {" ".join(map(str, one)): came for one, came in zip(tried, answer.json(), strict=True)}

    async def all_refused(self, *tried: list[Any]) -> None:
        came = await self.attempts(*tried)
        passed = {what: how for what, how in came.items() if not how.startswith(("refused EACCES", "refused EPERM"))}
        assert not passed, passed

    async def who(self, env: Environment) -> dict[str, int]:
        """User, process and parent of its backend."""
        found: dict[str, int] = (await self.ask(env, "GET", "/alive")).json()
        return found

    def workplace(self, env: Environment) -> Path:
        return Path(str(env.bindings["tracker"].address["path"])).parent

    async def sibling_goes_on(self, pid: int) -> None:
        """The very process that it was; it writes, reads, and is published."""
        assert (await self.who(self.b))["pid"] == pid
        assert (await self.ask(self.b, "PUT", "/keys/key", "of b")).status_code == 200
        await self.b.snapshot()
        assert (await self.ask(self.b, "GET", "/keys/key")).text == "of b"


@asynccontextmanager
async def open_fenced(place: Path, **options: str | int) -> AsyncIterator[Fenced]:
    shutil.copy(SERVER, place)
    for name in ("base", "media"):
        (place / name).mkdir()
        (place / name / "seeded").write_text("from the base")
    make_base(place / "db.sqlite3")
    command = json.dumps([PYTHON, "-I", "-S", str(place / SERVER.name), "{data}", "{port}"])
    contract = place / "fenced.toml"
    contract.write_text(CONTRACT.format(command=command, **{**USUAL, **options}))
    async with statefork.open_engine(contract, state=place / "state") as engine, serve_control(engine):
        yield Fenced(engine, await engine.create("a"), await engine.create("b"))
    assert statefork.audit(place / "state", world=True).clean


async def test_the_engines_secrets_are_out_of_reach(open_place: Path) -> None:
    async with open_fenced(open_place) as fenced:
        sibling = await fenced.who(fenced.b)
        await fenced.ask(fenced.b, "PUT", "/keys/key", "of b")
        await fenced.b.snapshot()
        engine, keeper = os.getpid(), (await fenced.who(fenced.a))["parent"]
        state = open_place / "state"
        await fenced.all_refused(
            *(["read", f"/proc/{pid}/environ"] for pid in (engine, keeper)),
            *(["memory", pid] for pid in (engine, keeper)),
            *(["trace", pid] for pid in (engine, keeper)),
            *(["list", f"/proc/{pid}/fd"] for pid in (engine, keeper)),
            *(["read", str(state / name)] for name in ("journal.sqlite3", "journal.sqlite3-wal")),
            *(["list", str(state / name)] for name in ("blobs", "resources/db", "resources/media")),
            ["connect", str(socket_path(state))],
            ["write", str(state / "journal.sqlite3")],
            ["write", str(state / "lock")],
            ["remove", str(socket_path(state))],
            ["read", "/etc/shadow"],
        )
        await fenced.sibling_goes_on(sibling["pid"])


async def test_files_of_other_environments_are_out_of_reach(open_place: Path) -> None:
    """Wherever they lie, and although everybody may see in /proc where that is: trees, layers, versions, databases."""
    async with open_fenced(open_place) as fenced:
        sibling = await fenced.who(fenced.b)
        await fenced.ask(fenced.b, "PUT", "/keys/key", "of b")
        await fenced.b.snapshot()
        tree = str(fenced.b.bindings["tracker"].address["path"])
        layers = open_place / "state" / "resources" / "tracker" / "layers"
        uppers = list(layers.glob("b-*/tree"))
        own = fenced.workplace(fenced.a)
        await fenced.all_refused(
            *(
                ["list", tree],
                ["read", f"{tree}/key"],
                ["write", f"{tree}/key"],
                ["link", f"{tree}/key", f"{own}/tree/x"],
            ),
            *(["list", str(fenced.workplace(fenced.b) / name)] for name in (".", "run", "tree")),
            ["read", str(fenced.workplace(fenced.b) / "log")],
            *(["list", str(layers.parent / name)] for name in (".", "layers", "sealed", "branches", "tmp")),
            *(["read", str(upper / "key")] for upper in uppers),
            *(["read", str(fenced.b.bindings[name].address["path"])] for name in ("db", "media")),
            *(["read", str(fenced.a.bindings[name].address["path"])] for name in ("db", "media")),
            ["write", str(own / "process.json")],
            ["write", str(own / "another")],
        )
        assert uppers or fenced.engine.kernel.resources["tracker"].strategy().reason.find("copy") >= 0
        assert (await fenced.attempts(["write", f"{own}/tree/key"], ["write", f"{own}/run/key"])).keys()
        assert (await fenced.ask(fenced.a, "GET", "/keys/key")).text == "mine", "it has what is its own"
        await fenced.sibling_goes_on(sibling["pid"])


async def test_processes_of_other_environments_are_out_of_reach(open_place: Path) -> None:
    async with open_fenced(open_place) as fenced:
        sibling, me = await fenced.who(fenced.b), await fenced.who(fenced.a)
        assert len({0, sibling["uid"], me["uid"]}) == 3
        others = (os.getpid(), me["parent"], sibling["pid"], sibling["parent"])
        await fenced.all_refused(
            *(["signal", pid, number] for pid in others for number in (signal.SIGKILL, signal.SIGSTOP)),
            *(["trace", pid] for pid in others),
            *(["memory", pid] for pid in others),
            *(["read", f"/proc/{pid}/environ"] for pid in others),
            *(["list", f"/proc/{pid}/cwd"] for pid in others),
            *(["become", uid] for uid in (0, sibling["uid"])),
            ["mount", str(fenced.a.bindings["tracker"].address["path"])],
        )
        await fenced.sibling_goes_on(sibling["pid"])


def ports_of(fenced: Fenced) -> dict[str, tuple[str, int]]:
    """Where a sibling can be reached, and the engine's other doors: what a command may guess, or read in /proc."""
    host, _, port = fenced.b.base_url().removeprefix("http://").partition(":")
    mine, _, number = fenced.a.base_url().removeprefix("http://").partition(":")
    backend = int(str(fenced.b.bindings["tracker"].address["port"]))
    return {"base URL": (host, int(port)), "its own": (mine, int(number)), "backend": ("127.0.0.1", backend)}


@pytest.mark.parametrize("cut", ["freeze", "restart"])
async def test_ports_of_the_machine_are_not_there_in_a_network_of_its_own(open_place: Path, cut: str) -> None:
    async with open_fenced(open_place, network="own", cut=cut) as fenced:
        sibling = await fenced.who(fenced.b)
        with forbidden() as place:
            ports = {**ports_of(fenced), "anybody": ("127.0.0.1", place.port)}
            came = await fenced.attempts(*(["reach", *where] for where in ports.values()))
            assert set(came.values()) == {"refused ECONNREFUSED"}
            (outside,) = (await fenced.attempts(["reach", "169.254.169.254", 80])).values()
            assert outside == "refused ENETUNREACH"
            assert not place.visited()
        (listed,) = (await fenced.attempts(["run", "/bin/sh", "-c", "grep -c ' 0A ' /proc/net/tcp"])).values()
        assert listed == "done 1", "it sees that it listens, and nobody else"
        if cut == "freeze":
            await fenced.sibling_goes_on(sibling["pid"])


@pytest.mark.parametrize("cut", ["freeze", "restart"])
async def test_a_backend_in_a_network_of_its_own_lives_as_any(open_place: Path, cut: str) -> None:
    async with open_fenced(open_place, network="own", cut=cut) as fenced:
        await fenced.ask(fenced.a, "PUT", "/keys/key", "kept")
        saved = await fenced.a.snapshot()
        (child,) = await fenced.engine.fork(saved, n=1)
        for env in (fenced.a, child):
            await fenced.ask(env, "PUT", "/keys/key", f"of {env.name}")
        assert [(await fenced.ask(env, "GET", "/keys/key")).text for env in (fenced.a, child)] == ["of a", "of a-f1"]
        await fenced.a.restore(saved)
        await fenced.a.park()
        await fenced.a.activate()
        assert (await fenced.ask(fenced.a, "GET", "/keys/key")).text == "kept"
        await fenced.ask(fenced.a, "POST", "/killall")
        await noticed(fenced, fenced.a)
        assert (await fenced.ask(fenced.a, "GET", "/keys/key")).text == "kept", "and who asks next has it started again"
        assert (await fenced.ask(fenced.b, "GET", "/keys/key")).status_code == 404


async def noticed(fenced: Fenced, env: Environment) -> None:
    """Return when the engine knows that the backend is dead: its keeper ends a moment after it."""
    (bound,) = (one for one in env.bindings.values() if one.adapter == "process")
    resource: Any = fenced.engine.kernel.resources[bound.resource]
    with anyio.fail_after(60):
        await until(lambda: resource.died(bound))


async def test_a_program_of_roots_gives_it_no_rights(open_place: Path) -> None:
    """Where the machine has a program that makes everybody root, a backend stays who it is."""
    lender = open_place / "id"
    shutil.copy(shutil.which("id") or "/usr/bin/id", lender)
    lender.chmod(0o4755)
    as_anybody = ["setpriv", "--reuid=65534", "--clear-groups", str(lender), "-u"]
    lent = await anyio.run_process(as_anybody)
    if lent.stdout.strip() != b"0":
        pytest.skip("programs lend no rights here: the file system is mounted without")
    async with open_fenced(open_place) as fenced:
        sibling, me = await fenced.who(fenced.b), await fenced.who(fenced.a)
        (came,) = (await fenced.attempts(["run", str(lender), "-u"])).values()
        assert came == f"done {me['uid']}"
        await fenced.sibling_goes_on(sibling["pid"])


async def test_who_kills_everything_kills_itself(open_place: Path) -> None:
    async with open_fenced(open_place) as fenced:
        await fenced.ask(fenced.a, "PUT", "/keys/key", "kept")
        await fenced.a.snapshot()
        sibling, me = await fenced.who(fenced.b), await fenced.who(fenced.a)
        died = await fenced.ask(fenced.a, "POST", "/killall")
        assert (died.status_code, died.json()["code"]) == (502, "upstream_failed")
        await fenced.sibling_goes_on(sibling["pid"])
        await noticed(fenced, fenced.a)
        again = await fenced.who(fenced.a)
        assert again["pid"] != me["pid"], "who asks next has it started again"
        assert (await fenced.ask(fenced.a, "GET", "/keys/key")).text == "kept"
        ops = [e.op async for r in fenced.engine.journal.read() if isinstance(e := r.event, GenerationPublished)]
        assert ops[-1] == "recover", "and the journal says that its tail was given up"


def of_user(uid: int) -> list[int]:
    """Every process of a user."""
    return [
        found.pid for found in psutil.process_iter(["uids"]) if found.info["uids"] and found.info["uids"].real == uid
    ]


async def test_a_fork_bomb_is_bounded_and_ends_with_its_environment(open_place: Path) -> None:
    async with open_fenced(open_place) as fenced:
        sibling, me = await fenced.who(fenced.b), await fenced.who(fenced.a)
        assert (await fenced.ask(fenced.a, "POST", "/bomb")).text == "lit"
        with anyio.fail_after(60):
            await until(lambda: len(of_user(me["uid"])) >= PROCESSES_MAX // 2)
            await fenced.sibling_goes_on(sibling["pid"])
            assert len(of_user(me["uid"])) <= PROCESSES_MAX
            await fenced.a.reset()
            await until(lambda: not of_user(me["uid"]))
        assert (await fenced.ask(fenced.a, "GET", "/keys/seeded")).text == "from the base"
        await fenced.sibling_goes_on(sibling["pid"])


async def test_more_than_its_share_of_the_disk_is_not_published(open_place: Path) -> None:
    async with open_fenced(open_place, max_bytes=1 << 20) as fenced:
        sibling = await fenced.who(fenced.b)
        assert (await fenced.ask(fenced.a, "POST", "/fill")).text == str(64 << 20)
        with pytest.raises(TransitionAborted, match="max_bytes"):
            await fenced.a.snapshot()
        await fenced.sibling_goes_on(sibling["pid"])
        await fenced.a.reset()
        assert (await fenced.ask(fenced.a, "GET", "/keys/all")).status_code == 404


@pytest.fixture
def small_disk(open_place: Path) -> Iterator[Path]:
    """The backends' trees lie on a disk of their own: 8 MB in memory."""
    place = open_place / "state" / "resources" / "tracker"
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_a_disk_that_a_backend_filled_is_told_and_given_back(open_place: Path, small_disk: Path) -> None:
    async with open_fenced(open_place) as fenced:
        sibling = await fenced.who(fenced.b)
        await fenced.ask(fenced.b, "PUT", "/keys/key", "of b")
        assert (await fenced.ask(fenced.a, "POST", "/fill")).text.startswith("ENOSPC")
        assert (await fenced.ask(fenced.b, "GET", "/keys/key")).text == "of b", "it reads, and goes on running"
        with pytest.raises(TransitionAborted, match="No space left"):
            await fenced.a.snapshot()
        await fenced.engine.kernel.recover("a")  # what fills the disk is given up
        await fenced.a.reset()
        await fenced.a.activate()
        assert (await fenced.ask(fenced.a, "GET", "/keys/seeded")).text == "from the base"
        await fenced.sibling_goes_on(sibling["pid"])
