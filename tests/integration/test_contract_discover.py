"""``contract discover``: what a run touches beyond its contract is named, and what the contract has is not."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.cli.main import invoke
from statefork.adapters.interfaces.contracts.writes import Heard
from statefork.adapters.interfaces.registry import adapter_names, check_options
from statefork.adapters.resources.process.standing import started
from statefork.engine.contract import parse_contract
from tests.contract.postgres_server import PostgresServer, missing_postgres
from tests.contract.process_kit import SERVER

CONTRACT = """
[contract]
name = "tracked"

[resources.tracker]
adapter = "process"
command = {command}
host = "tracker.example"
ready = "http /ready"
"""
PUT = (
    f'{sys.executable} -c "import os, urllib.request as u; u.build_opener(u.ProxyHandler({{}})).open(u.Request('
    "os.environ['STATEFORK_BASE_URL'] + '/keys/a', data=b'x', method='PUT'))\""
)
ACT = f'{sys.executable} -m statefork act "$STATEFORK_ENV" goto'


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    path = tmp_path / "contract" / "tracked.toml"
    path.parent.mkdir()
    path.write_text(CONTRACT.format(command=json.dumps([sys.executable, "-I", "-S", str(SERVER), "{data}", "{port}"])))
    return path


@pytest.fixture(params=["heard", "walked"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel's word for who writes, as root, and without."""
    if request.param == "heard" and os.geteuid() != 0:
        pytest.skip("this needs root")
    if request.param == "walked":

        def refuse(_: Heard) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Heard, "begin", refuse)
    return str(request.param)


def discovered(
    contract: Path, run: str, watch: Path, *words: str, capsys: pytest.CaptureFixture[str], status: int
) -> dict[str, Any]:
    line = ["contract", "discover", str(contract), "--run", run, "--watch", str(watch), *words]
    assert invoke([*line, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_the_contract_has_is_not_missed(
    contract: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = tmp_path / "watched"
    watch.mkdir()
    found = discovered(contract, PUT, watch, capsys=capsys, status=0)
    assert found["missed"] == []
    assert found["status"] == 0


def test_files_elsewhere_and_what_is_left_running_are_missed(
    contract: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = tmp_path / "watched"
    (watch / "uploads").mkdir(parents=True)
    sqlite = f"{sys.executable} -c \"import sqlite3; sqlite3.connect('{watch}/app.db').execute('create table t(a)')\""
    run = f"echo x > {watch}/uploads/stray; {sqlite}; sleep 1000 & echo $! > {tmp_path}/pid"
    found = discovered(contract, run, watch, capsys=capsys, status=1)
    kinds = {one["kind"]: one for one in found["missed"]}
    assert kinds["files"]["what"] == str(watch / "uploads")
    assert kinds["database"]["what"] == str(watch / "app.db")
    assert kinds["process"]["what"] == "sleep 1000"
    named, told = "written by sh" in kinds["files"]["evidence"], " ".join(found["notes"])
    assert ("change times" in told) == (how == "walked")
    assert named == (how == "heard") or "had ended before it was known" in told  # on a machine that is very busy
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while started(pid):
        assert time.monotonic() < deadline, "what was left running is ended"
    text = "\n".join(one["fragment"] for one in found["missed"])
    parsed = parse_contract(f'[contract]\nname = "x"\n{text}', "fragment", adapters=adapter_names())
    check_options(parsed)
    assert {spec.adapter for spec in parsed.resources.values()} == {"files", "sqlite", "process"}


@pytest.mark.root
def test_what_others_write_is_not_the_runs(contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = tmp_path / "watched"
    watch.mkdir()
    writing = f"trap exit TERM; while :; do echo x > {watch}/others; done"
    stranger = subprocess.Popen(["setsid", "--fork", "sh", "-c", f"echo $$ > {tmp_path}/pid; {writing}"])
    stranger.wait()
    try:
        found = discovered(contract, PUT, watch, capsys=capsys, status=0)
    finally:
        subprocess.run(["kill", (tmp_path / "pid").read_text().strip()], check=True)
    assert (watch / "others").exists()
    assert found["missed"] == []


def test_a_command_that_fails_is_told(contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = discovered(contract, "exit 3", tmp_path / "contract", capsys=capsys, status=1)
    assert (found["status"], found["missed"]) == (3, [])


@pytest.mark.browser
def test_hosts_that_pages_were_refused_are_missed(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with contract.open("a") as file:
        file.write('[resources.browser]\nadapter = "browser"\ndepends_on = ["tracker"]\n')
    run = f"{ACT} http://tracker.example/ready; {ACT} http://elsewhere.example/"
    found = discovered(contract, run, contract.parent, capsys=capsys, status=1)
    assert [(one["kind"], one["what"]) for one in found["missed"]] == [("host", "elsewhere.example")]


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[int]:
    """The port of a server for keys."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    pytest.importorskip("redis")
    if program is None:
        pytest.skip("there is no redis-server and no valkey-server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not answers(port):
        assert time.monotonic() < deadline
    yield port
    server.terminate()
    server.wait()


def test_keys_of_a_cache_that_the_contract_lacks_are_missed(
    contract: Path, tmp_path: Path, cache: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"redis://127.0.0.1:{cache}"
    run = f"{sys.executable} -c \"import redis, time; redis.from_url('{url}').set('session:1', 'x')\""
    found = discovered(contract, run, contract.parent, "--cache", url, capsys=capsys, status=1)
    (one,) = [one for one in found["missed"] if one["kind"] == "cache"]
    assert "session:1" in one["evidence"]
    assert 'adapter = "valkey"' in one["fragment"]


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    """A server that has nothing to do with statefork."""
    if reason := missing_postgres():
        pytest.skip(reason)
    server = PostgresServer()
    yield server
    server.remove()


def test_rows_in_a_database_that_the_contract_lacks_are_missed(
    contract: Path, tmp_path: Path, database: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "write.py"
    script.write_text(
        "import psycopg, sys\n"
        "with psycopg.connect(sys.argv[1], autocommit=True) as connection:\n"
        "    connection.execute('CREATE TABLE note (body text)')\n"
        "    connection.execute('INSERT INTO note SELECT generate_series(1, 1000)')\n"
    )
    run = f"{sys.executable} {script} '{database.dsn}'"
    found = discovered(contract, run, contract.parent, "--database", database.dsn, capsys=capsys, status=1)
    (one,) = [one for one in found["missed"] if one["kind"] == "database"]
    assert "rows were written" in one["evidence"]
    assert 'adapter = "postgres"' in one["fragment"]


def test_a_server_that_can_not_be_watched_is_told_before_anything_runs(
    contract: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("redis")
    line = ["contract", "discover", str(contract), "--run", f"touch {tmp_path}/ran", "--cache", "redis://127.0.0.1:1"]
    assert invoke(line) == 2
    assert "error[resource_unreachable]" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
