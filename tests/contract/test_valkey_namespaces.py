"""Namespaces that are hard to keep apart, to keep, and to be sure of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

import statefork
from statefork.adapters.resources.conformance_kit import Driver
from statefork.engine.errors import ResourceBusy, ResourceFailed
from statefork.engine.ports import Owner
from statefork.journal.values import Binding
from tests.contract.valkey_kit import bench_for, client, key, missing_valkey

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(missing_valkey()), reason=missing_valkey() or "the server is here"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[Driver]:
    driver = Driver(bench_for(tmp_path))
    await driver.resource.start()
    yield driver
    await driver.resource.stop()


def raw(resource: Any, *words: Any) -> Any:
    """As the administrator."""
    return resource._admin.ask(*words)


def everything(resource: Any) -> set[bytes]:
    return set(resource._admin.keys(""))


REFUSED = (
    *("SCAN 0", "KEYS *", "RANDOMKEY", "DBSIZE", "FLUSHALL", "FLUSHDB", "SWAPDB 0 0", "SELECT 0", "INFO", "MONITOR"),
    *("CONFIG GET *", "CONFIG SET maxmemory 0", "SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION LIST", "FUNCTION FLUSH"),
    *("CLIENT LIST", "CLIENT KILL TYPE normal", "CLIENT TRACKING on BCAST", "CLIENT PAUSE 100", "PUBSUB CHANNELS *"),
    *("ACL LIST", "ACL SETUSER x", "DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "SAVE", "BGREWRITEAOF"),
    *("REPLICAOF no one", "MODULE LIST", "SLOWLOG GET", "LATENCY DOCTOR", "MEMORY PURGE", "CLUSTER INFO"),
    *("GET {other}", "SET {other} x", "DEL {other}", "EXISTS {other}", "TYPE {other}", "TTL {other}", "DUMP {other}"),
    *("RENAME {mine} {other}", "RENAME {other} {mine}", "COPY {other} {mine}", "COPY {mine} {other}"),
    *("LMOVE {other} {mine} LEFT LEFT", "SUNIONSTORE {mine} {other}", "OBJECT ENCODING {other}", "WATCH {other}"),
    *("SORT {mine} BY {other}*", "SUBSCRIBE {other}", "PSUBSCRIBE *", "PUBLISH {other} x", "BLPOP {other} 1"),
    *("PSUBSCRIBE __keyspace@0__:*", "MEMORY USAGE {other}", "RESTORE {mine} 0 x", "MIGRATE h 1 {other} 0 1"),
)


async def test_nothing_of_another_environment_can_be_reached(drive: Driver) -> None:
    base = await drive.base()
    _, a = await drive.open(base, env="a")
    _, b = await drive.open(base, env="b")
    with client(a) as one, client(b) as two:
        one.set(key(a, "same"), "marker-of-a")
        two.set(key(b, "same"), "marker-of-b")
        assert (one.get(key(a, "same")), two.get(key(b, "same"))) == ("marker-of-a", "marker-of-b")
        for template in REFUSED:
            command = template.format(mine=key(b, "same"), other=key(a, "same"))
            with client(b) as fresh, pytest.raises(Exception, match=r"(?i)permission|denied|command not allowed"):
                fresh.execute_command(*command.split())
        for script in ("return redis.call('GET', ARGV[1])", "return redis.call('SCAN', '0')"):
            with pytest.raises(Exception, match=r"(?i)access|can't run"):
                two.eval(script, 0, key(a, "same"))
    with pytest.raises(Exception, match=r"(?i)auth|username"), client(a) as thief:
        thief.execute_command("AUTH", a.address["user"], b.address["password"])


async def test_a_discarded_namespace_leaves_nothing(drive: Driver) -> None:
    base = await drive.base()
    old, bound = await drive.open(base, env="a", epoch=1)
    with client(bound) as server:
        server.mset({key(bound, f"key {number}"): "marker" for number in range(1200)})
        await drive.close(old, bound)
        with pytest.raises(Exception, match=r"(?i)closed|username"):
            server.get(key(bound, "key 1"))
    assert everything(drive.resource) == set()
    assert [user for user in raw(drive.resource, "ACL", "USERS") if user.startswith(b"sf-")] == []


async def kinds(binding: Binding, *, backwards: bool = False) -> None:
    """A key of every type, its members in one order or the other."""
    step = -1 if backwards else 1
    members = [f"member {number}" for number in range(300)][::step]
    with client(binding) as server:
        server.set(key(binding, "string"), "text")
        server.setbit(key(binding, "bits"), 9, 1)
        server.rpush(key(binding, "list"), "b", "a", "b")
        server.sadd(key(binding, "set"), *members)
        server.hset(key(binding, "hash"), mapping=dict.fromkeys(members, "value"))
        server.zadd(key(binding, "sorted"), dict.fromkeys(members, 1.5))
        server.geoadd(key(binding, "places"), [13.4, 52.5, "Berlin"])
        server.xadd(key(binding, "stream"), {"field": "value"}, id="1-1")
        server.xgroup_create(key(binding, "stream"), "readers", id="0")
        server.set(key(binding, "session"), "x", ex=1000)


async def test_every_type_comes_along_with_its_time_to_live(drive: Driver) -> None:
    base = await drive.base()
    one, one_bound = await drive.open(base, env="one")
    two, two_bound = await drive.open(base, env="two")
    await kinds(one_bound)
    await kinds(two_bound, backwards=True)
    first, second = await drive.cut(one), await drive.cut(two)
    assert await drive.resource.digest(first) == await drive.resource.digest(second)
    assert await drive.changes(first, second) == []
    assert len(await drive.changes(base, first)) == 9
    third, bound = await drive.open(first, env="three")
    with client(bound) as server:
        assert 900 < server.ttl(key(bound, "session")) <= 1000
        assert server.ttl(key(bound, "string")) == -1
        assert server.smembers(key(bound, "set")) == {f"member {number}" for number in range(300)}
        assert server.xinfo_groups(key(bound, "stream"))[0]["name"] == "readers"
        assert len(server.xreadgroup("readers", "me", {key(bound, "stream"): ">"})) == 1
        server.delete(key(bound, "list"))
        server.persist(key(bound, "session"))
    changed = await drive.changes(first, await drive.cut(third))
    assert changed == ["removed list", "changed session", "changed stream"]


WRITES = (
    *("SET k v", "APPEND s x", "INCR n", "SETRANGE s 0 y", "SETBIT b 3 1", "BITFIELD b SET u8 0 7", "GETDEL s"),
    *("GETEX n EX 100", "EXPIRE n 100", "PERSIST n", "MSET m1 1 m2 2", "SETNX nx 1", "GETSET m1 5", "BITOP NOT b2 b"),
    *("LPUSH l a b c", "RPOP l", "LSET l 0 z", "LINSERT l BEFORE z y", "LTRIM l 0 1", "LMOVE l l2 LEFT RIGHT"),
    *("SADD t a b c", "SREM t a", "SMOVE t t2 b", "SUNIONSTORE t3 t t2", "SPOP t3", "HSET h f 1", "HINCRBY h f 2"),
    *("HDEL h f", "ZADD z 1 a 2 b", "ZINCRBY z 1 a", "ZRANGESTORE z2 z 0 -1", "ZREM z a", "ZPOPMIN z", "PFADD p a b"),
    *("PFMERGE p2 p", "GEOADD g 1 1 x", "GEOSEARCHSTORE g2 g FROMMEMBER x BYRADIUS 9 km", "RENAME m2 m3", "COPY m3 m4"),
    *("XADD x 1-1 f v", "XGROUP CREATE x grp 0", "XREADGROUP GROUP grp me STREAMS x >", "XCLAIM x grp you 0 1-1"),
    *(
        "XACK x grp 1-1",
        "XGROUP DELCONSUMER x grp me",
        "XADD x 2-1 f v",
        "XDEL x 1-1",
        "XTRIM x MAXLEN 0",
        "XSETID x 9-9",
        "DEL x",
    ),
    *("SORT t2 ALPHA STORE l9", "EVAL return\tredis.call('SET',KEYS[1],'1') 1 e", "UNLINK e", "PEXPIRE m4 1"),
)
READS = (
    "GET m1",
    "LRANGE l 0 -1",
    "TOUCH m1",
    "OBJECT ENCODING m1",
    "EXISTS m1",
    "XADD no NOMKSTREAM * f v",
    "DEL nope",
)
_KEYS = (
    *("k", "s", "n", "b", "b2", "m1", "m2", "m3", "m4", "nx", "l", "l2", "l9", "t", "t2", "t3", "h", "z", "z2"),
    *("p", "p2", "g", "g2", "x", "e", "no", "nope"),
)


def carried(binding: Binding, command: str) -> list[str]:
    words = command.split(" ")
    return [key(binding, word) if word in _KEYS else word.replace("\t", " ") for word in words]


async def test_the_mark_differs_after_every_write_and_after_no_read(drive: Driver) -> None:
    branch, binding = await drive.open(await drive.base())
    mark = await drive.resource.write_mark(branch)
    with client(binding) as server:
        for command in WRITES:
            before = mark
            server.execute_command(*carried(binding, command))
            mark = await drive.resource.write_mark(branch)
            assert mark != before, command
        with anyio.fail_after(10):  # a key that expires is a change too, whoever notices
            while server.exists(key(binding, "m4")):
                await anyio.lowlevel.checkpoint()
        assert await drive.resource.write_mark(branch) != mark
        mark = await drive.resource.write_mark(branch)
        for command in READS:
            server.execute_command(*carried(binding, command))
            assert await drive.resource.write_mark(branch) == mark, command


async def test_a_lost_subscription_makes_every_mark_another_and_loses_no_key(drive: Driver) -> None:
    branch, binding = await drive.open(await drive.base())
    mark = await drive.resource.write_mark(branch)
    raw(drive.resource, "CLIENT", "KILL", "TYPE", "pubsub")
    await drive.write(binding, "unseen", "value")
    assert await drive.resource.write_mark(branch) != mark
    assert await drive.seen(await drive.cut(branch), "unseen") == "value"


@pytest.mark.parametrize("held", ["MULTI", "BLPOP", "SUBSCRIBE"])
async def test_who_is_in_the_middle_of_something_is_named(drive: Driver, held: str) -> None:
    branch, binding = await drive.open(await drive.base())
    with client(binding) as server:
        connection = server.connection_pool.get_connection()
        connection.send_command("CLIENT", "SETNAME", "worker")
        connection.read_response()
        words = {"MULTI": (), "BLPOP": (key(binding, "queue"), 0), "SUBSCRIBE": (key(binding, "news"),)}[held]
        connection.send_command(held, *words)
        if held != "BLPOP":
            connection.read_response()
        told = {"MULTI": "MULTI open", "BLPOP": "blocking command", "SUBSCRIBE": "subscribed"}[held]
        with pytest.raises(ResourceBusy, match=rf"worker.*{told}"):
            await drive.cut(branch)
        await drive.write(binding, "after", "value")  # it is not frozen
        connection.disconnect()
    assert await drive.seen(await drive.cut(branch), "after") == "value"


async def test_a_frozen_namespace_refuses_stragglers_and_keeps_their_connections(drive: Driver) -> None:
    branch, binding = await drive.open(await drive.base())
    with client(binding) as server:
        server.client_id()
        number = server.client_id()
        await drive.resource.quiesce(branch)
        with pytest.raises(Exception, match=r"(?i)permission"):
            server.set(key(binding, "late"), "x")
        await drive.resource.thaw(branch)
        assert server.client_id() == number
        assert server.set(key(binding, "late"), "x")


async def killed(resource: Any) -> None:
    """The server dies, and is there again."""
    (pid,) = resource.process_ids()
    process = psutil.Process(pid)
    process.kill()
    with anyio.fail_after(30):
        while resource.process_ids() in ((pid,), ()):
            await anyio.lowlevel.checkpoint()
    await resource.start()


async def test_a_killed_server_comes_back_with_what_it_had_acknowledged(drive: Driver) -> None:
    resource: Any = drive.resource
    branch, binding = await drive.open(await drive.base())
    for number in range(50):
        await drive.write(binding, f"key {number}", "value")
    mark = await resource.write_mark(branch)
    sealed = await drive.cut(branch)
    await drive.write(binding, "last", "value")
    await killed(resource)
    await resource.probe(binding)
    assert await drive.read(binding, "last") == "value"
    assert await resource.write_mark(branch) != mark
    again = await drive.cut(branch)
    assert await drive.changes(sealed, again) == ["added last"]
    with pytest.raises(Exception, match=r"(?i)permission"), client(binding) as server:
        server.keys("*")


def fill(server: Any, name: str) -> None:
    """Write until the server takes no more."""
    for number in range(10_000):
        server.set(f"{name} {number}", os.urandom(20_000))


async def test_full_memory_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    drive = Driver(bench_for(tmp_path, max_memory=12 << 20))
    try:
        base = await drive.base()
        small, binding = await drive.open(base, env="small")
        with client(binding) as server:
            server.set(key(binding, "big"), os.urandom(1 << 20))
        sealed = await drive.cut(small)
        await drive.close(small, binding)
        branch, binding = await drive.open(base, env="greedy")
        with client(binding) as server, pytest.raises(Exception, match="maxmemory"):
            fill(server, key(binding, "big"))
        with pytest.raises(ResourceFailed, match="filling a namespace failed") as caught:
            await drive.resource.branch(sealed, Owner(env="fork", epoch=1))
        assert "max_memory" in caught.value.hint
        assert await drive.handles() == sorted([base, sealed, branch], key=repr)
        assert {name for name in everything(drive.resource) if not name.startswith(binding_prefix(binding))} == set()
        await drive.close(branch, binding)
        _, again = await drive.open(sealed, env="fork")
        with client(again) as server:
            assert server.strlen(key(again, "big")) == 1 << 20
    finally:
        await drive.resource.stop()


def binding_prefix(binding: Binding) -> bytes:
    return str(binding.address["prefix"]).encode()


@pytest.mark.parametrize("ttl", ["remaining", "absolute"])
async def test_what_expires_while_it_is_parked(tmp_path: Path, ttl: str) -> None:
    drive = Driver(bench_for(tmp_path, ttl=ttl))
    try:
        branch, binding = await drive.open(await drive.base())
        with client(binding) as server:
            server.set(key(binding, "login"), "me", px=300)
            sealed = await drive.cut(branch)
            with anyio.fail_after(10):
                while server.exists(key(binding, "login")):
                    await anyio.lowlevel.checkpoint()
        _, again = await drive.open(sealed, env="again")
        with client(again) as server:
            assert server.get(key(again, "login")) == ("me" if ttl == "remaining" else None)
            assert server.pttl(key(again, "login")) <= 300
    finally:
        await drive.resource.stop()


async def test_an_endless_script_does_not_hold_up_the_others(drive: Driver) -> None:
    base = await drive.base()
    _, binding = await drive.open(base, env="a")
    with client(binding) as server:
        connection = server.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", 0)
        _, other = await drive.open(base, env="b")
        assert await drive.read(other, "key") is None
        connection.disconnect()


async def test_an_endless_script_that_has_written_ends_with_the_server(
    drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statefork.adapters.resources.valkey.asking._PATIENCE_S", 0.1)
    base = await drive.base()
    _, binding = await drive.open(base, env="a")
    branch, other = await drive.open(base, env="b")
    await drive.write(other, "key", "value")
    with client(binding) as server:
        connection = server.connection_pool.get_connection()
        connection.send_command("EVAL", "redis.call('set', KEYS[1], '1') while true do end", 1, key(binding, "x"))
        with anyio.fail_after(20):
            sealed = await drive.cut(branch)
        connection.disconnect()
    assert await drive.seen(sealed, "key") == "value"
    assert await drive.read(binding, "x") is None, "of the script nothing is kept"


CONTRACT = """
[contract]
name = "desk"
[resources.cache]
adapter = "valkey"
durability = "ephemeral"
[resources.sessions]
adapter = "valkey"
"""


def at(env: statefork.Environment, resource: str) -> tuple[Any, str]:
    binding = env.bindings[resource]
    return client(binding), str(binding.address["prefix"])


def put(env: statefork.Environment, resource: str, value: str) -> None:
    server, prefix = at(env, resource)
    with server:
        server.set(f"{prefix}who", value, ex=1000)


def who(env: statefork.Environment, resource: str) -> str | None:
    server, prefix = at(env, resource)
    with server:
        found = server.get(f"{prefix}who")
        assert found is None or isinstance(found, str)
        return found


async def test_sessions_survive_what_caches_do_not(tmp_path: Path) -> None:
    contract = tmp_path / "desk.toml"
    contract.write_text(CONTRACT)
    seen = set()
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        a = await engine.create("a")
        put(a, "sessions", "ann")
        put(a, "cache", "ann")
        logged_in = await a.snapshot()
        assert (who(a, "sessions"), who(a, "cache")) == ("ann", "ann")
        put(a, "sessions", "bob")
        (child,) = await engine.fork("a", n=1)
        await a.restore(logged_in)
        assert (who(a, "sessions"), who(a, "cache")) == ("ann", None)
        assert (who(child, "sessions"), who(child, "cache")) == ("bob", None)
        await a.reset()
        assert (who(a, "sessions"), who(a, "cache")) == (None, None)
        for env in (a, child):
            seen |= {str(binding.address["password"]) for binding in env.bindings.values()}
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        again = engine.environment(child.name)
        await again.activate()
        assert (who(again, "sessions"), who(again, "cache")) == ("bob", None)
    report = statefork.audit(tmp_path / "state")
    assert report.clean, report
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [secret for secret in seen if secret.encode() in data], path


ENGINE = """
import sys, anyio, statefork
async def main():
    async with statefork.open_engine(sys.argv[1], state=sys.argv[2]) as engine:
        await engine.create("a")
        print(*engine.kernel.resources["sessions"].process_ids(), flush=True)
        await anyio.sleep_forever()
anyio.run(main, backend="trio")
"""


async def test_a_killed_engine_leaves_no_server(tmp_path: Path) -> None:
    contract = tmp_path / "desk.toml"
    contract.write_text(CONTRACT)
    command = [sys.executable, "-c", ENGINE, str(contract), str(tmp_path / "state")]
    async with await anyio.open_process(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        server = psutil.Process(int((await child.stdout.receive()).split()[0]))
        os.kill(child.pid, signal.SIGKILL)
    await anyio.to_thread.run_sync(psutil.wait_procs, [server], 10)
    assert not server.is_running()
    async with statefork.open_engine(contract, state=tmp_path / "state") as engine:
        a = engine.environment("a")
        await a.activate()
        assert who(a, "sessions") is None
    report = statefork.audit(tmp_path / "state")
    assert report.clean, report
