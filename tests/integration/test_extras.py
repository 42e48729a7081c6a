"""The extras as they are installed: an engine whose database and sessions are on servers of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import statefork
from tests.contract.valkey_kit import missing_valkey
from tests.integration.postgres_kit import needs_postgres, run

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.extras,
    needs_postgres,
    pytest.mark.skipif(bool(missing_valkey()), reason=missing_valkey() or "the server is here"),
]

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "postgres"
base = "notes.sql"
pool = 0
[resources.sessions]
adapter = "valkey"
"""


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


async def test_servers_of_both_extras_start_and_follow_a_restore(tmp_path: Path) -> None:
    import redis

    (tmp_path / "notes.sql").write_text("CREATE TABLE note (text text);")
    (tmp_path / "notes.toml").write_text(CONTRACT)
    async with statefork.open_engine(tmp_path / "notes.toml", state=tmp_path / "state") as engine:
        env = await engine.create("a")

        def held() -> tuple[int, bytes | None]:
            address = env.bindings["sessions"].address
            with redis.Redis.from_url(str(address["url"])) as server:
                return run(env, "SELECT count(*) FROM note")[0][0], server.get(f"{address['prefix']}who")

        run(env, "INSERT INTO note VALUES ('kept')")
        with redis.Redis.from_url(str(env.bindings["sessions"].address["url"])) as server:
            server.set(f"{env.bindings['sessions'].address['prefix']}who", "ann")
        kept = await env.snapshot()
        await env.reset()
        assert held() == (0, None)
        await env.restore(kept)
        assert held() == (1, b"ann")
    report = statefork.audit(tmp_path / "state")
    assert report.clean, report


def test_nothing_of_them_is_loaded_that_was_not_asked_for() -> None:
    """So statefork works without them."""
    script = "import sys, statefork, statefork.__main__; print({'psycopg', 'redis', 'django'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
