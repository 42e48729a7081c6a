"""Who reaches what: a branch's role opens its own database and nothing else, and the engine touches only its own."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import psycopg
import pytest

from statefork.adapters.interfaces.cli.faults import exit_status
from statefork.adapters.resources.conformance import Driver
from statefork.adapters.resources.postgres.connecting import Admin
from statefork.adapters.resources.postgres.external import ExternalServer
from statefork.adapters.resources.postgres.naming import Names
from statefork.adapters.resources.postgres.server import EmbeddedServer
from statefork.engine.errors import ContractError, NotReady, ResourceFailed, ResourceUnreachable
from statefork.journal.errors import StateLocked
from statefork.journal.values import Binding, Branch
from tests.contract.postgres_kit import BASE, bench_on, by_dsn, dsn, opened, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
def bench_options() -> dict[str, Any]:
    return {"connections_per_environment_max": 3}


def as_other(binding: Binding, database: str) -> psycopg.Connection[Any]:
    """Connect with one binding's secret to another database."""
    address = {key: str(value) for key, value in binding.address.items() if key != "name"}
    return psycopg.connect(dbname=database, **address)  # type: ignore[arg-type]  # all text


async def test_a_branch_reaches_nothing_but_itself(one: Driver) -> None:
    base = await one.base()
    _, mine = await one.open(base, env="mine")
    theirs_branch, theirs = await one.open(base, env="theirs")
    await one.write(theirs, "key", "theirs")
    sealed = await one.cut(theirs_branch)
    for database in (theirs.address["name"], base.data["database"], sealed.data["database"], "postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match=r"permission denied|not currently accepting"):
            as_other(mine, str(database))
    for statement in (
        f'SET ROLE "{theirs.address["user"]}"',
        f'SET SESSION AUTHORIZATION "{theirs.address["user"]}"',
        "SET ROLE postgres",
        f'ALTER ROLE "{theirs.address["user"]}" PASSWORD NULL',
        f'ALTER DATABASE "{theirs.address["name"]}" ALLOW_CONNECTIONS false',
        f'DROP DATABASE "{theirs.address["name"]}"',
        f'CREATE DATABASE stolen TEMPLATE "{sealed.data["database"]}"',
        "CREATE ROLE another",
        "COPY pairs TO PROGRAM 'cat'",
        "COPY pairs FROM '/etc/hostname'",
        "SELECT pg_read_file('/etc/hostname')",
        "SELECT lo_import('/etc/hostname')",
        "SELECT pg_ls_dir('.')",
        "ALTER SYSTEM SET fsync = off",
        "SET file_copy_method = clone; CREATE TABLESPACE elsewhere LOCATION '/'",
    ):
        with pytest.raises(psycopg.Error):
            run(mine, statement)
    with opened(theirs) as busy:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(mine, f"SELECT pg_terminate_backend({busy.info.backend_pid})")
        shown = run(mine, f"SELECT query FROM pg_stat_activity WHERE pid = {busy.info.backend_pid}")
        assert shown == [("<insufficient privilege>",)]
    assert await one.read(theirs, "key") == "theirs"


async def test_a_secret_is_the_bindings_alone(one: Driver, server: EmbeddedServer) -> None:
    branch, binding = await one.open(await one.base())
    secret = str(binding.address["password"])
    wrong = {**binding.address, "password": "wrong"}
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        run(Binding(**{**{name: getattr(binding, name) for name in binding.__struct_fields__}, "address": wrong}), "")
    assert secret not in repr([handle async for handle in one.resource.inventory()])
    for path in (path for path in (*one.bench.state.rglob("*"), server.log) if path.is_file()):
        assert secret.encode() not in path.read_bytes()
    with psycopg.connect(dsn(server)) as connection:
        query = "SELECT query FROM pg_stat_activity UNION ALL SELECT rolpassword FROM pg_authid"
        assert not any(secret in (row[0] or "") for row in connection.execute(query))
    await one.resource.unbind(binding)
    with pytest.raises(NotReady):
        await one.resource.probe(binding)
    again = await one.bind(branch)
    assert again.address["password"] != secret
    await one.write(again, "key", "value")


async def test_an_unbind_ends_the_sessions_and_a_later_activation_keeps_its_own(one: Driver) -> None:
    branch, first = await one.open(await one.base())
    second = await one.bind(branch)
    with opened(second) as connection:
        await one.resource.unbind(first)  # another activation has taken over
        assert connection.execute("SELECT 1").fetchone() == (1,)
        await one.resource.unbind(second)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


async def test_objects_made_without_the_common_role_are_everybodys_after_a_cut(one: Driver) -> None:
    branch, binding = await one.open(await one.base())
    run(binding, "RESET ROLE; CREATE SCHEMA own; CREATE TABLE own.t (a int); INSERT INTO own.t VALUES (1)")
    sealed = await one.cut(branch)
    await one.close(branch, binding)
    _, other = await one.open(sealed, env="other")
    assert run(other, "UPDATE own.t SET a = 2", "SELECT a FROM own.t") == [(2,)]


async def test_the_limit_of_one_environment_is_named(one: Driver) -> None:
    base = await one.base()
    _, binding = await one.open(base)
    _, sibling = await one.open(base, env="sibling")
    with opened(binding), opened(binding), opened(binding):
        with pytest.raises(ResourceFailed, match="too many connections for role") as caught:
            await one.resource.probe(binding)
        assert caught.value.facts["limit"] == "connections_per_environment_max"
        assert "raise the resource's option" in caught.value.hint
        await one.resource.probe(sibling)


async def test_the_limit_of_the_server_is_named_and_the_engine_goes_on(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    environments = [await one.open(base, env=f"env-{number}") for number in range(15)]
    held = []
    try:
        with contextlib.suppress(psycopg.OperationalError):
            for _, binding in environments * 3:
                held.append(as_other(binding, str(binding.address["name"])))  # those before the error stay
        assert len(held) < 45
        branch, binding = environments[-1]
        with pytest.raises(ResourceFailed, match="connection slots") as caught:
            await one.resource.probe(binding)
        assert caught.value.facts["limit"] == "max_connections"
        await one.resource.quiesce(branch)  # by the connections that are the engine's
        await one.resource.seal(branch)
        await one.resource.thaw(branch)
    finally:
        for connection in held:
            connection.close()


def make_neighbours(connection: psycopg.Connection[Any], names: Names) -> list[str]:
    """Databases and roles that look like a resource's own, and are not."""
    ours = names.new("b")
    alike = [
        Names("journal-three", "db", "place").new("b"),  # another journal's
        ours[:-1],
        ours + "0",
        ours.replace("_b", "_x"),
        ours.upper(),
        ours.replace("sf_", "sfx"),
        "sf",
        ours[:-12] + "zzzzzzzzzzzz",
    ]
    for name in alike:
        connection.execute(f'CREATE ROLE "{name}" LOGIN')
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 OWNER "{name}"')
    connection.execute(f'ALTER DATABASE "{alike[0]}" IS_TEMPLATE true ALLOW_CONNECTIONS false')
    return alike


def look(connection: psycopg.Connection[Any], neighbours: list[str]) -> list[Any]:
    databases = connection.execute(
        "SELECT d.*, pg_stat_get_db_xact_commit(d.oid) > 0 FROM pg_database d WHERE datname = ANY(%s) ORDER BY 1",
        (neighbours,),
    ).fetchall()
    roles = connection.execute("SELECT * FROM pg_authid WHERE rolname = ANY(%s) ORDER BY 1", (neighbours,)).fetchall()
    return [*databases, *roles]


async def test_neighbours_that_look_alike_are_never_touched(server: EmbeddedServer, tmp_path: Path) -> None:
    bench = bench_on(by_dsn(server), tmp_path, pool=1)
    first = Driver(bench)
    await first.resource.start()
    with psycopg.connect(dsn(server), autocommit=True) as connection:
        neighbours = make_neighbours(connection, first.resource.backend.names)  # type: ignore[attr-defined]  # ours
        before = look(connection, neighbours)
        base = await first.base()
        branch, binding = await first.open(base)
        await first.write(binding, "key", "value")
        sealed = await first.cut(branch)
        assert [change async for change in first.resource.diff(base, sealed)]
        # no stop: a second engine finds what the first one left
        second = Driver(bench)
        assert await second.base() == base
        for handle in [handle async for handle in second.resource.inventory()]:
            await second.resource.discard(handle)
        await second.resource.stop()
        await first.resource.stop()
        assert look(connection, neighbours) == before
        left = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        assert left == {*neighbours, "postgres", "template0", "template1"}
        connection.execute(f'ALTER DATABASE "{neighbours[0]}" IS_TEMPLATE false')


async def test_a_server_of_others_that_lets_everybody_in_is_told(server: EmbeddedServer, tmp_path: Path) -> None:
    with psycopg.connect(dsn(server), autocommit=True) as connection:
        connection.execute("CREATE DATABASE open_house")
    driver = Driver(bench_on(by_dsn(server), tmp_path))
    await driver.resource.start()
    reason = driver.resource.strategy().reason
    await driver.resource.stop()
    assert "lets every role connect to open_house" in reason
    assert "private" not in reason  # that is a strategy


async def test_a_user_that_may_not_do_the_work_is_refused(server: EmbeddedServer, tmp_path: Path) -> None:
    with psycopg.connect(dsn(server), autocommit=True) as connection:
        connection.execute("CREATE ROLE helper LOGIN CREATEDB CREATEROLE PASSWORD 'helper'")
        connection.execute("GRANT CONNECT ON DATABASE postgres TO helper")
        address = psycopg.conninfo.make_conninfo("", **{**server.address(), "user": "helper", "password": "helper"})
        driver = Driver(bench_on(ExternalServer("db", address), tmp_path))
        with pytest.raises(ResourceFailed, match="no superuser"):
            await driver.resource.start()
        connection.execute("REVOKE CONNECT ON DATABASE postgres FROM helper")


@pytest.mark.parametrize(
    ("changed", "said", "hint"),
    [
        ({"host": "127.0.0.1", "port": 1}, "does not answer", "host and port"),
        ({"password": "wrong-secret"}, "refuses the login", "user and password"),
        ({"dbname": "nowhere"}, "has no such database", "createdb nowhere"),
    ],
)
async def test_a_server_that_can_not_be_used_is_told_before_anything_runs(
    tmp_path: Path, server: EmbeddedServer, changed: dict[str, Any], said: str, hint: str
) -> None:
    address = psycopg.conninfo.make_conninfo("", **{**server.address(), **changed})
    driver = Driver(bench_on(ExternalServer("db", address), tmp_path))
    looked = driver.resource.strategy()  # as doctor does
    with pytest.raises(ResourceUnreachable, match=said) as caught:
        await driver.resource.start()
    assert hint in caught.value.hint
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert exit_status(caught.value.code) == 2
    assert (looked.name, looked.reason, looked.faster) == ("none", caught.value.message, caught.value.hint)
    assert await anyio.to_thread.run_sync(driver.resource.process_ids) == ()


TRAP = """
CREATE FUNCTION trap() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;
CREATE EVENT TRIGGER at_end ON ddl_command_end EXECUTE FUNCTION trap();
CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION trap();
ALTER EVENT TRIGGER at_login ENABLE ALWAYS;
"""
SPRUNG = """
CREATE OR REPLACE FUNCTION trap() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
    ALTER ROLE postgres SET work_mem = '77MB';
  END IF;
END $$;
RESET ROLE; CREATE SCHEMA own; CREATE TABLE own.made (a int); INSERT INTO own.made VALUES (1)
"""
LIMITS = ("statement_timeout", "transaction_timeout", "idle_session_timeout", "lock_timeout")


async def test_no_session_of_the_engine_answers_to_what_a_database_brings(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    driver = Driver(bench_on(server, tmp_path, BASE + TRAP))
    branch, binding = await driver.open(await driver.base())
    run(binding, SPRUNG)
    sealed = await driver.cut(branch)
    await driver.close(branch, binding)
    _, its = await driver.open(sealed, env="other")
    assert run(its, "UPDATE own.made SET a = 2", "SELECT a FROM own.made") == [(2,)]
    assert await driver.resource.digest(sealed)
    await driver.resource.stop()
    with psycopg.connect(dsn(server)) as connection:
        assert not connection.execute("SELECT FROM pg_db_role_setting WHERE setconfig = '{work_mem=77MB}'").fetchall()


async def test_limits_of_time_that_a_server_has_are_not_the_engines(server: EmbeddedServer) -> None:
    admin = Admin("db", server.address())
    try:
        admin.run(*(f"ALTER ROLE postgres SET {name} = '1h'" for name in LIMITS))
        for database in ("", "template1"):
            with contextlib.closing(Admin("db", server.address()).connect(database)) as connection:
                query = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"
                found = dict(connection.execute(query, (list(LIMITS),)).fetchall())
                assert found == dict.fromkeys(LIMITS, "0")
    finally:
        admin.run("ALTER ROLE postgres RESET ALL")
        admin.close()


async def test_the_common_role_keeps_nothing_that_an_application_gave_it(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    _, sibling = await one.open(base, env="sibling")
    there = sibling.address["name"]
    run(
        binding,
        "ALTER ROLE CURRENT_USER SET search_path = told",
        f'ALTER ROLE CURRENT_USER IN DATABASE "{there}" SET search_path = told',
        "ALTER ROLE CURRENT_USER PASSWORD 'told'",
    )
    await one.close(branch, binding)
    with psycopg.connect(dsn(server)) as connection:
        assert not connection.execute("SELECT FROM pg_db_role_setting WHERE setconfig::text ~ 'told'").fetchall()
        query = "SELECT FROM pg_authid WHERE rolname ~ '^sf_.*_app$' AND rolpassword IS NOT NULL"
        assert not connection.execute(query).fetchall()


async def test_one_who_fills_the_table_of_locks_keeps_nobody_from_working(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    other, its = await one.open(base)
    await one.write(its, "key", "value")
    with contextlib.suppress(psycopg.OperationalError), opened(binding) as hoarder:
        with pytest.raises(psycopg.errors.OutOfMemory):
            hoarder.execute("SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 200000) n")
        with pytest.raises(psycopg.OperationalError, match="out of shared memory"), opened(its):
            pass
        with pytest.raises(ResourceFailed, match="table of locks is full") as caught:
            Admin("db", server.address()).rows("SELECT 1")  # nobody relieves it
        assert caught.value.facts["limit"] == "max_locks_per_transaction"
        assert await one.seen(await one.cut(other), "key") == "value"
        with pytest.raises(psycopg.OperationalError):
            hoarder.execute("SELECT 1")
    await one.close(branch, binding)


async def test_a_copied_state_directory_does_not_touch_the_originals_databases(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    bench = bench_on(by_dsn(server), tmp_path)
    original = Driver(bench)
    branch, binding = await original.open(await original.base())
    shutil.copytree(bench.state, tmp_path / "copied")
    copied = Driver(msgspec.structs.replace(bench, state=tmp_path / "copied"))
    await original.write(binding, "key", "value")
    sealed = await original.cut(branch)
    with pytest.raises(StateLocked, match="another engine has opened them"):
        await copied.resource.start()
    owner = original.resource.backend.names.owner  # type: ignore[attr-defined]  # ours
    with psycopg.connect(dsn(server), autocommit=True) as connection:
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name ~ 'statefork .'"
        assert connection.execute(ended).fetchall() == [(True,)]  # the lock is free
        with pytest.raises(StateLocked, match="is a copy of the one that made them") as caught:
            await copied.resource.start()
        assert f'COMMENT ON ROLE "{owner}" IS NULL' in caught.value.hint
        assert await original.seen(sealed, "key") == "value"
        assert await original.handles()
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchall() == [(1,)]
        again = Driver(bench)  # the first did not stop: killed, its session is still there
        await again.resource.start()
        assert await again.seen(sealed, "key") == "value"
        await again.resource.stop()
        await original.resource.stop()
        connection.execute(f'COMMENT ON ROLE "{owner}" IS NULL')
        assert {handle.id for handle in await copied.handles() if isinstance(handle, Branch)} == {branch.id}
    await copied.resource.stop()


@pytest.mark.parametrize("name", ["nowhere", ""])
async def test_a_live_database_that_is_not_there_is_seen_before_it_is_copied(
    tmp_path: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    address = psycopg.conninfo.make_conninfo("", **{**server.address(), "dbname": name}) if name else ""
    monkeypatch.setenv("STATEFORK_TEST_LIVE", address)
    driver = Driver(bench_on(server, tmp_path, base="", live_variable="STATEFORK_TEST_LIVE"))
    strategy = driver.resource.strategy()
    assert strategy.name == "none"
    assert ("has no such database" if name else "is not set") in strategy.reason
    with pytest.raises((ResourceUnreachable, ContractError)) as caught:
        await driver.base()
    assert (caught.value.message, caught.value.hint) == (strategy.reason, strategy.faster)
    await driver.resource.stop()


OVERREACH = """
CREATE TYPE mood AS ENUM ('good'); CREATE TABLE moods (mood mood PRIMARY KEY); INSERT INTO moods VALUES ('good');
CREATE FUNCTION overreach(mood) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
  SET ROLE NONE;
  BEGIN COPY (SELECT 1) TO PROGRAM 'cat'; RETURN 'a program ran'; EXCEPTION WHEN insufficient_privilege THEN END;
  BEGIN SET ROLE postgres; RETURN 'a superuser'; EXCEPTION WHEN insufficient_privilege THEN END;
  BEGIN SET SESSION AUTHORIZATION postgres; RETURN 'a superuser'; EXCEPTION WHEN insufficient_privilege THEN END;
  BEGIN ALTER ROLE CURRENT_USER PASSWORD NULL; RETURN 'a writer'; EXCEPTION WHEN read_only_sql_transaction THEN END;
  BEGIN PERFORM rolpassword FROM pg_authid; RETURN 'secrets'; EXCEPTION WHEN insufficient_privilege THEN END;
  RETURN 'nothing'; END $$;
CREATE CAST (mood AS text) WITH FUNCTION overreach(mood);
CREATE FUNCTION whole(log) RETURNS text LANGUAGE sql AS $$ SELECT 'never asked' $$;
CREATE CAST (log AS text) WITH FUNCTION whole(log);
INSERT INTO log VALUES ('new');
REVOKE ALL ON log FROM CURRENT_USER
"""
HIDDEN = """
CREATE SCHEMA hidden; CREATE TABLE hidden.kept (n serial PRIMARY KEY, t text); INSERT INTO hidden.kept (t) VALUES ('a');
CREATE SEQUENCE hidden.steps; SELECT lo_from_bytea(4711, 'x');
CREATE FOREIGN DATA WRAPPER w; CREATE SERVER far FOREIGN DATA WRAPPER w;
CREATE USER MAPPING FOR PUBLIC SERVER far OPTIONS (key 'value')
"""


async def test_what_an_application_made_has_no_power_where_it_is_read(one: Driver, server: EmbeddedServer) -> None:
    base = await one.base()
    branch, binding = await one.open(base)
    run(binding, OVERREACH)
    inside = psycopg.conninfo.make_conninfo(dsn(server), dbname=str(binding.address["name"]))
    with psycopg.connect(inside, autocommit=True) as connection:
        connection.execute(HIDDEN)  # what is the superuser's alone is read as well
    sealed = await one.cut(branch)
    assert await one.resource.digest(sealed) != await one.resource.digest(base)
    found = [change async for change in one.resource.diff(base, sealed)]
    names = {change.name for change in found}
    assert {"hidden.kept[1]", "sequence hidden.steps value", "large object 4711", "user mappings far"} <= names
    rows = [change.after for change in found if change.name == "log" or change.name.startswith("moods[")]
    assert rows == [{"line": "new"}, {"mood": "nothing"}]
    create = "CREATE OR REPLACE FUNCTION overreach(mood) RETURNS text LANGUAGE plpgsql AS"
    run(binding, f"{create} $$ BEGIN CREATE TABLE stray (); RETURN 0; END $$")
    sealed = await one.cut(branch)
    with pytest.raises(ResourceFailed, match="more than a reader may do: cannot execute CREATE TABLE"):
        assert [change async for change in one.resource.diff(base, sealed)]
    await one.settle()
    with psycopg.connect(dsn(server)) as connection:
        assert not connection.execute("SELECT rolname FROM pg_roles WHERE rolname ~ '^sf_.*_s'").fetchall()
