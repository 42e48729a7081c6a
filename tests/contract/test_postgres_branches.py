"""PostgreSQL in particular: what comes along, what a cut closes and what it refuses, pools, ways of copying."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.postgres import PostgresResource
from statefork.adapters.resources.postgres import cut as cut_module
from statefork.adapters.resources.postgres.holders import Holder, Survey, survey
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.errors import ResourceBusy, ResourceFailed
from tests.contract.postgres_kit import BASE, bench_on, cleared, dsn, opened, run

pytestmark = pytest.mark.anyio

RICH = (
    BASE
    + """
CREATE EXTENSION hstore;
CREATE SEQUENCE numbers START 100 INCREMENT 10;
CREATE TABLE documents (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tags hstore, body oid);
CREATE UNLOGGED TABLE cache (key text PRIMARY KEY, value text);
CREATE VIEW short AS SELECT key FROM pairs WHERE length(value) < 3;
CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS lines FROM log;
CREATE TABLE audit (what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO audit VALUES (TG_OP || ' ' || NEW.key); RETURN NEW; END $$;
CREATE TRIGGER noting AFTER INSERT OR UPDATE ON pairs FOR EACH ROW EXECUTE FUNCTION note();
CREATE TABLE rows_of_tenants (tenant text, line text);
ALTER TABLE rows_of_tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE rows_of_tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON rows_of_tenants USING (tenant = current_setting('app.tenant', true));
INSERT INTO cache VALUES ('warm', 'yes');
INSERT INTO documents (tags, body) VALUES ('a=>1', lo_from_bytea(0, 'base'::bytea));
"""
)
CHANGES = (
    "SELECT nextval('numbers'), nextval('numbers')",
    "INSERT INTO documents (tags, body) VALUES ('b=>2', lo_from_bytea(0, 'branch'::bytea))",
    "INSERT INTO cache VALUES ('hot', 'too')",
    "INSERT INTO pairs VALUES ('key', 'ab')",
    "SET app.tenant = 'me'; INSERT INTO rows_of_tenants VALUES ('me', 'mine')",
    "INSERT INTO log VALUES ('more'); REFRESH MATERIALIZED VIEW counted",
    "CREATE SCHEMA private; CREATE TABLE private.made_here (a int)",
)
QUESTIONS = {
    "SELECT nextval('numbers')": (120,),
    "SELECT tags -> 'b', convert_from(lo_get(body), 'UTF8') FROM documents ORDER BY id DESC LIMIT 1": ("2", "branch"),
    "SELECT convert_from(lo_get(body), 'UTF8') FROM documents ORDER BY id LIMIT 1": ("base",),
    "SELECT string_agg(key, ',' ORDER BY key) FROM cache": ("hot,warm",),
    "SELECT key FROM short": ("key",),
    "SELECT what FROM audit": ("INSERT key",),
    "SELECT lines FROM counted": (201,),
    "SELECT count(*) FROM rows_of_tenants": (0,),  # row security, also for the role that owns the table
    "SELECT count(*) FROM private.made_here": (0,),
    "SELECT id FROM documents ORDER BY 1 DESC LIMIT 1": (2,),
}


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def on_xfs(postgres_on_xfs: EmbeddedServer) -> Iterator[EmbeddedServer]:
    with cleared(postgres_on_xfs):
        yield postgres_on_xfs


@pytest.fixture
async def clones(on_xfs: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(bench_on(on_xfs, tmp_path))
    yield driver
    await driver.resource.stop()


async def test_everything_in_a_database_comes_along(server: EmbeddedServer, tmp_path: Path) -> None:
    driver = Driver(bench_on(server, tmp_path, base=RICH))
    base = await driver.base()
    branch, binding = await driver.open(base)
    run(binding, *CHANGES)
    sealed = await driver.cut(branch)
    names = {line.split(" ", 1)[1] for line in await driver.changes(base, sealed)}
    await driver.close(branch, binding)
    branch, binding = await driver.open(sealed, env="later")
    answers = {question: run(binding, question)[0] for question in QUESTIONS}
    await driver.resource.stop()
    assert answers == QUESTIONS
    for part in ("numbers", "cache", "pairs", "log", "private.made_here"):
        assert any(part in name for name in names), f"{part} in {names}"


async def test_a_live_database_is_copied_once_and_left_alone(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = psycopg.conninfo.make_conninfo("", **{**server.address(), "dbname": "origin"})
    with psycopg.connect(dsn(server), autocommit=True) as connection:
        connection.execute("CREATE DATABASE origin")
    monkeypatch.setenv("STATEFORK_TEST_ORIGIN", origin)
    with psycopg.connect(origin, autocommit=True) as connection:
        connection.execute(BASE)
        driver = Driver(bench_on(server, tmp_path, base="", live_variable="STATEFORK_TEST_ORIGIN"))
        base = await driver.base()
        connection.execute("INSERT INTO pairs VALUES ('key', 'later')")
        assert await driver.base() == base
        branch, binding = await driver.open(base)
        await driver.write(binding, "other", "here")
        assert await driver.read(binding, "key") is None
        await driver.close(branch, binding)
        await driver.resource.stop()
        assert connection.execute("SELECT key FROM pairs").fetchall() == [("key",)]


HOLDERS = {
    "transaction": ("BEGIN", "SELECT 1"),
    "advisory lock": ("SELECT pg_advisory_lock(42)",),
    "listen": ("LISTEN news",),
    "temporary table": ("CREATE TEMPORARY TABLE basket (a int)",),
}


@pytest.mark.parametrize("kind", HOLDERS)
async def test_who_would_lose_something_is_named_and_loses_nothing(one: Driver, kind: str) -> None:
    branch, binding = await one.open(await one.base())
    with opened(binding) as holder, opened(binding) as idle:
        for statement in HOLDERS[kind]:
            holder.execute(statement)
        with pytest.raises(ResourceBusy, match=f"pid {holder.info.backend_pid}") as caught:
            await one.resource.quiesce(branch)
        assert caught.value.facts["kinds"] == kind
        assert [connection.execute("SELECT 1").fetchone() for connection in (holder, idle)] == [(1,), (1,)]
        await one.write(binding, "key", "newcomers come in again")
    sealed = await one.cut(branch)
    assert await one.seen(sealed, "key") == "newcomers come in again"


async def test_a_session_that_its_client_has_closed_keeps_nobody_waiting(
    one: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, binding = await one.open(await one.base())
    with opened(binding) as leaving:
        leaving.execute("CREATE TEMPORARY TABLE basket (a int)")
        backend = leaving.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # it does not notice yet
    looked: list[tuple[Holder, ...]] = []

    def looking(*given: Any) -> Survey:
        seen = survey(*given)
        looked.append(seen.holders)
        with contextlib.suppress(ProcessLookupError):
            os.kill(backend, signal.SIGCONT)
        return seen

    monkeypatch.setattr(cut_module, "survey", looking)
    monkeypatch.setattr(cut_module, "_LEAVING_S_MAX", 30)
    await one.resource.quiesce(branch)
    assert "temporary table" in {holder.kind for holder in looked[0]}
    assert looked[-1] == ()
    await one.resource.thaw(branch)


async def test_a_cut_closes_idle_sessions_and_the_address_stays(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    with opened(binding) as pooled:
        pooled.execute("INSERT INTO log VALUES ('from the pool')")
        await one.resource.quiesce(branch)
        with pytest.raises(psycopg.OperationalError):
            pooled.execute("SELECT 1")
    with pytest.raises(ResourceFailed, match="no more connections") as caught:
        await one.resource.probe(binding)
    assert caught.value.facts["limit"] == "frozen"
    before = await one.resource.write_mark(branch)
    sealed = await one.resource.seal(branch)
    assert await one.resource.write_mark(branch) == before
    await one.resource.thaw(branch)
    await one.resource.probe(binding)
    assert run(binding, "SELECT line FROM log WHERE line LIKE 'from%'") == [("from the pool",)]
    assert await one.resource.seal(branch) == sealed


async def test_a_branch_is_sealed_out_of_use(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    with opened(binding) as pooled:
        pooled.execute("INSERT INTO pairs VALUES ('key', 'value')")
        sealed = await one.resource.seal(branch)  # nobody said quiesce
    assert await one.seen(sealed, "key") == "value"
    await one.resource.probe(binding)


async def test_a_version_is_never_connected_to_and_never_written(one: Driver, server: EmbeddedServer) -> None:
    branch, binding = await one.open(await one.base())
    await one.write(binding, "key", "value")
    sealed = await one.cut(branch)
    name = str(sealed.data["database"])
    await one.resource.digest(sealed)
    with psycopg.connect(dsn(server)) as connection:
        query = "SELECT datallowconn, datistemplate, pg_stat_get_db_sessions(oid) FROM pg_database WHERE datname = %s"
        assert connection.execute(query, (name,)).fetchone() == (False, True, 0)
        (oid,) = connection.execute("SELECT oid FROM pg_database WHERE datname = %s", (name,)).fetchone() or ()
    files = {path.name: path.read_bytes() for path in (server.data / "base" / str(oid)).iterdir()}
    await one.write(binding, "key", "later")
    await one.seen(sealed, "key")
    assert {path.name: path.read_bytes() for path in (server.data / "base" / str(oid)).iterdir()} == files


async def test_the_pool_gives_branches_and_is_filled_again(server: EmbeddedServer, tmp_path: Path) -> None:
    driver = Driver(bench_on(server, tmp_path, pool=2))
    resource = driver.resource
    assert isinstance(resource, PostgresResource)
    base = await driver.base()
    resource.backend.workshop.settle()
    copies = len(databases(server))
    branches = [await driver.open(base, env=f"env-{number}") for number in range(5)]
    for number, (_, binding) in enumerate(branches):
        await driver.write(binding, "key", str(number))
    assert [await driver.read(binding, "key") for _, binding in branches] == list("01234")
    assert await driver.cut(branches[0][0]) != base
    for branch, binding in branches:
        await driver.close(branch, binding)
    resource.backend.workshop.settle()
    assert len(databases(server)) == copies + 1  # the version that was sealed
    await resource.stop()
    assert len(databases(server)) == copies + 1 - 2


@pytest.mark.root
async def test_what_will_be_forked_is_copied_twice_at_once(clones: Driver, on_xfs: EmbeddedServer) -> None:
    resource = clones.resource
    assert isinstance(resource, PostgresResource)
    branch, binding = await clones.open(await clones.base())
    await clones.write(binding, "key", "before")
    await resource.quiesce(branch)
    resource.expect_fork(branch)
    before = await resource.write_mark(branch)
    sealed = await resource.seal(branch)
    assert await resource.write_mark(branch) == before
    await resource.thaw(branch)
    await clones.write(binding, "key", "after")
    workshop = resource.backend.workshop
    there = set(databases(on_xfs))
    child, child_binding = await clones.open(sealed, env="child")
    workshop.settle()
    assert str(child.data["database"]) in there  # it was made beside the version
    assert await clones.read(child_binding, "key") == "before"
    assert await clones.resource.seal(child) == sealed  # as unchanged as any other branch
    await clones.write(child_binding, "key", "child")
    assert await clones.seen(await clones.cut(child), "key") == "child"
    assert await clones.read(binding, "key") == "after"
    await clones.close(child, child_binding)


@pytest.mark.root
async def test_a_fork_that_does_not_come_leaves_nothing(clones: Driver, on_xfs: EmbeddedServer) -> None:
    resource = clones.resource
    assert isinstance(resource, PostgresResource)
    base = await clones.base()
    resource.backend.workshop.settle()
    there = set(databases(on_xfs))
    branch, binding = await clones.open(base)
    await clones.write(binding, "key", "value")
    await resource.quiesce(branch)
    resource.expect_fork(branch)
    sealed = await resource.seal(branch)
    await resource.discard(sealed)  # as an aborted transition does
    await resource.thaw(branch)
    await resource.probe(binding)
    await clones.close(branch, binding)
    resource.backend.workshop.settle()
    assert len(databases(on_xfs)) == len(there)


async def test_what_an_aborted_cut_sealed_goes_with_the_next_seal(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    await one.write(binding, "key", "0")
    await one.cut(branch)
    there = len(databases(server))
    for number in range(1, 4):
        await one.write(binding, "key", str(number))
        await one.resource.discard(await one.cut(branch))  # as an aborted transition does
    await one.write(binding, "key", "last")
    assert await one.seen(await one.cut(branch), "key") == "last"
    one.resource.backend.workshop.settle()  # type: ignore[attr-defined]  # ours
    assert len(databases(server)) == there + 1


async def test_a_transaction_begun_after_the_first_look_is_named_and_goes_on(
    one: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, binding = await one.open(await one.base())
    with opened(binding) as idle, opened(binding) as busy:
        idle.execute("SELECT 1")
        looked: list[object] = []

        def survey_and_begin(*given: Any) -> Survey:
            seen = survey(*given)
            if not looked:
                busy.execute("BEGIN")
                busy.execute("INSERT INTO log VALUES ('begun')")
            looked.append(seen)
            return seen

        monkeypatch.setattr(cut_module, "survey", survey_and_begin)
        with pytest.raises(ResourceBusy, match=f"pid {busy.info.backend_pid}") as caught:
            await one.resource.quiesce(branch)
        assert caught.value.facts["kinds"] == "transaction"
        busy.execute("COMMIT")
        assert len(looked) == 2
    assert run(binding, "SELECT count(*) FROM log WHERE line = 'begun'") == [(1,)]


async def test_a_superuser_who_moves_a_sequence_between_two_marks_tears_the_cut(
    one: Driver, server: EmbeddedServer
) -> None:
    branch, binding = await one.open(await one.base())
    run(binding, "CREATE SEQUENCE numbers")
    await one.resource.quiesce(branch)
    before = await one.resource.write_mark(branch)
    with psycopg.connect(dsn(server), dbname=str(binding.address["name"]), autocommit=True) as connection:
        connection.execute("SELECT nextval('numbers')")
    await one.resource.seal(branch)
    assert await one.resource.write_mark(branch) != before
    await one.resource.thaw(branch)


def databases(server: EmbeddedServer) -> list[str]:
    with psycopg.connect(dsn(server)) as connection:
        return [name for (name,) in connection.execute("SELECT datname FROM pg_database")]


@pytest.mark.root
async def test_clones_are_believed_only_when_their_extents_are_shared(
    postgres_on_xfs: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cleared(postgres_on_xfs) as server:
        driver = Driver(bench_on(server, tmp_path))
        base = await driver.base()
        branch, _ = await driver.open(base)
        assert driver.resource.strategy().name == "clone"
        usage = await driver.resource.usage(branch)
        assert usage.shared_bytes > 10 * usage.private_bytes
        await driver.resource.stop()
        # a file system that takes the request and copies: seen at the first clone that the server makes
        monkeypatch.setattr("statefork.adapters.resources.postgres.ways.shared_bytes", lambda _: 0)
        driver = Driver(driver.bench)
        await driver.base()
        await driver.open(base, env="two")
        await driver.open(base, env="three")
        strategy = driver.resource.strategy()
        await driver.resource.stop()
        assert strategy.name.startswith("copy")
        assert "copied the bytes when it was told to clone" in strategy.reason
