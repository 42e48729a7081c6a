"""Databases of several resources on one server: each is as it would be alone, and the server ends with the last."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from statefork.adapters.interfaces.python import open_engine
from statefork.adapters.resources.conformance import Bench, Driver
from statefork.adapters.resources.postgres import Options, PostgresResource, make
from statefork.engine.errors import ContractError
from statefork.engine.options import BadOptions
from statefork.engine.ports import Services
from statefork.journal.values import Binding
from tests.contract.postgres_kit import BASE, SMALL, in_memory, opened, options, read, run, settled, write

pytestmark = pytest.mark.anyio

TWO = """
[contract]
name = "two"

[resources.articles]
adapter = "postgres"
base = "articles.sql"
server = "shop"

[resources.shop]
adapter = "postgres"
base = "base.sql"
pool = 1
max_connections = 60
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:  # a short path, so that it has a socket
        Path(folder, "base.sql").write_text(BASE)
        yield Path(folder)


def driver(place: Path, name: str, wanted: Options) -> Driver:
    def made(services: Services) -> PostgresResource:
        return make(name, wanted, services)

    return Driver(Bench(make=made, write=write, read=read, state=place / "state", base_dir=place, settle=settled))


@pytest.fixture
async def shop(place: Path) -> AsyncIterator[Driver]:
    one = driver(place, "shop", options(settings=SMALL, max_connections=60, pool=1))
    yield one
    await one.resource.stop()


@pytest.fixture
async def wiki(place: Path) -> AsyncIterator[Driver]:
    one = driver(place, "wiki", options(server="shop", pool=1))
    yield one
    await one.resource.stop()


def postmaster(binding: Binding) -> object:
    return run(binding, "SELECT pg_postmaster_start_time(), inet_server_port()")


async def test_two_resources_share_one_server_and_nothing_else(shop: Driver, wiki: Driver) -> None:
    base = await wiki.base()  # whoever comes first starts it
    _, page = await wiki.open(base)
    goods_branch, goods = await shop.open(await shop.base())
    assert postmaster(page) == postmaster(goods)
    await wiki.write(page, "key", "page")
    await shop.write(goods, "key", "goods")
    sealed = await shop.cut(goods_branch)
    assert (await wiki.read(page, "key"), await shop.seen(sealed, "key")) == ("page", "goods")
    secret = {key: str(value) for key, value in page.address.items() if key != "name"}
    for database in (goods.address["name"], sealed.data["database"]):
        with pytest.raises(psycopg.OperationalError, match=r"permission denied|not currently accepting"):
            psycopg.connect(dbname=str(database), **secret)  # type: ignore[arg-type]  # all text
    inventory = [handle async for handle in wiki.resource.inventory()]
    assert all(handle.resource == "wiki" for handle in inventory)


async def test_it_ends_with_the_last_who_uses_it(shop: Driver, wiki: Driver) -> None:
    _, page = await wiki.open(await wiki.base())
    await shop.base()
    assert isinstance(shop.resource, PostgresResource)
    server, *_ = map(psutil.Process, shop.resource.process_ids())
    await shop.resource.stop()
    with opened(page):
        assert server.is_running()
    await wiki.resource.stop()
    assert not server.is_running()


async def test_one_that_starts_sweeps_only_its_own(shop: Driver, place: Path) -> None:
    """What a killed engine left of one resource goes; the other's branches and pool stay."""
    _, goods = await shop.open(await shop.base())
    await shop.write(goods, "key", "kept")
    await shop.settle()
    for _ in range(2):
        other = driver(place, "wiki", options(server="shop", pool=2))
        await other.open(await other.base())
        await other.resource.stop()
    assert await shop.read(goods, "key") == "kept"
    branch, again = await shop.open(await shop.base())
    assert await shop.read(again, "key") is None
    await shop.resource.discard(branch)


async def test_a_whole_contract_of_two_databases_is_forked(place: Path) -> None:
    contract = place / "two.toml"
    contract.write_text(TWO)
    (place / "articles.sql").write_text(BASE)
    async with open_engine(contract, state=place / "state") as engine:
        env = await engine.create("one")
        for name in ("shop", "articles"):
            write(env.bindings[name], "key", name)
        (child,) = await engine.fork("one")
        write(env.bindings["articles"], "key", "later")
        assert [read(child.bindings[name], "key") for name in ("shop", "articles")] == ["shop", "articles"]
        assert postmaster(child.bindings["shop"]) == postmaster(env.bindings["articles"])


@pytest.mark.parametrize("owner", ["nobody", "wiki", "../shop"])
async def test_a_server_that_nobody_has_is_told(shop: Driver, place: Path, owner: str) -> None:
    await shop.base()
    other = driver(place, "wiki", options(server=owner))
    with pytest.raises(ContractError, match=f"server: no resource '{owner}' of this contract has"):
        await other.resource.start()


async def test_it_keeps_no_more_than_its_server_does(shop: Driver, place: Path) -> None:
    await shop.base()
    other = driver(place, "wiki", options(server="shop", survives="os"))
    with pytest.raises(ContractError, match="does not survive a crash of the operating system"):
        await other.resource.start()
    assert other.resource.strategy().name != ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dsn", "host=x"),
        ("programs", "bin"),
        ("accelerate", True),
        ("max_connections", 50),
        ("settings", {"jit": "on"}),
    ],
)
def test_what_is_said_of_the_server_is_said_where_it_is(key: str, value: object) -> None:
    with pytest.raises(BadOptions, match=key):
        options(server="shop", **{key: value})
