"""PostgreSQL's versions carried to another journal: all that a database has, or a refusal that names what can't be."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.conformance_kit import OTHER_JOURNAL
from statefork.adapters.resources.postgres import PostgresResource, carrying
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.errors import ResourceFailed
from statefork.journal.values import Binding, Sealed
from tests.contract.postgres_kit import bench_on, dsn, run
from tests.contract.test_postgres_branches import CHANGES, QUESTIONS, RICH

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def bench_options() -> dict[str, Any]:
    return {"base": RICH}


async def asked(binding: Binding, *statements: str) -> list[tuple[object, ...]]:
    return await anyio.to_thread.run_sync(run, binding, *statements)


async def changed(driver: Driver, *statements: str) -> Sealed:
    """A version of what an application made of the base."""
    branch, binding = await driver.open(await driver.base())
    for statement in statements:
        await asked(binding, statement)
    sealed = await driver.cut(branch)
    await driver.close(branch, binding)
    return sealed


async def packed(driver: Driver, sealed: Sealed, tmp_path: Path) -> Path:
    directory = Path(tempfile.mkdtemp(dir=tmp_path))
    assert isinstance(driver.resource, PostgresResource)
    await driver.resource.pack(sealed, directory)
    return directory


async def test_all_that_a_database_has_is_carried(one: Driver, server: EmbeddedServer, tmp_path: Path) -> None:
    sealed = await changed(one, *CHANGES)
    before = await one.handles()
    directory = await packed(one, sealed, tmp_path)
    assert await one.handles() == before
    assert [path.name for path in directory.iterdir()] == [carrying.FILE]
    text = (directory / carrying.FILE).read_text()
    assert all(word not in text for word in ("tests", "sf_", "OWNER TO", "GRANT ", "PASSWORD"))
    other = Driver(bench_on(server, tmp_path), OTHER_JOURNAL)
    await other.base()
    assert isinstance(other.resource, PostgresResource)
    made = await other.resource.unpack(directory)
    assert await other.resource.digest(made) == await one.resource.digest(sealed)
    branch, binding = await other.open(made)
    for question, answer in QUESTIONS.items():
        assert await asked(binding, question) == [answer], question
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await asked(binding, "CREATE EXTENSION file_fdw")
    await other.close(branch, binding)
    await other.resource.stop()


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (("GRANT SELECT ON pairs TO PUBLIC",), "table public.pairs would be changed"),
        (("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",), "default privileges"),
        (("INSERT INTO log VALUES ('not counted')",), "counted"),
        (("CREATE POLICY mine ON pairs TO CURRENT_ROLE",), "the policy mine on public.pairs, which is for a role"),
    ],
    ids=["privileges", "default privileges", "a view that is behind", "a role"],
)
async def test_what_would_be_lost_is_named_and_nothing_is_left(
    one: Driver, tmp_path: Path, statements: tuple[str, ...], words: str
) -> None:
    sealed = await changed(one, *statements)
    before = await one.handles()
    with pytest.raises(ResourceFailed, match=f"db can't be carried in a file as it is: .*{words}"):
        await packed(one, sealed, tmp_path)
    assert await one.handles() == before


HOSTILE = {
    "\\! touch {place}\n": "runs a program",
    "SELECT 1;\nCOPY (SELECT 1) TO PROGRAM 'touch {place}';\n": "permission denied",
    "SET ROLE postgres;\nSELECT pg_read_file('PG_VERSION');\n": "permission denied",
    "SET SESSION AUTHORIZATION postgres;\nCREATE ROLE intruder SUPERUSER;\n": "it makes or changes a role",
    "DO $$BEGIN EXECUTE 'CREATE ROLE intruder SUPERUSER'; END$$;\n": "permission denied",
    "\\connect postgres\n": "leads to another database",
    "SELECT 'no end\n": "",
    "SELECT '" + "x" * 2000 + "';\n": "a line is longer",
}


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_file_that_was_made_to_do_harm_does_none(
    one: Driver, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(carrying, "LINE_BYTES_MAX", 1000)
    await one.base()
    before = await one.handles()
    (tmp_path / "packed").mkdir()
    place = tmp_path / "harm"
    (tmp_path / "packed" / carrying.FILE).write_text(text.format(place=place) if "{place}" in text else text)
    assert isinstance(one.resource, PostgresResource)
    with pytest.raises(ResourceFailed, match=f"(?s)db: unpacking a version failed.*{HOSTILE[text]}"):
        await one.resource.unpack(tmp_path / "packed")
    assert not place.exists()
    assert await one.handles() == before
    with psycopg.connect(dsn(server)) as connection:
        assert connection.execute("SELECT count(*) FROM pg_roles WHERE rolname = 'intruder'").fetchone() == (0,)
