"""Siblings over PostgreSQL, with the site, its files and its logins: what a fork brings along, and what is one's own.

The same is shown over SQLite with the real shop (test_shop_cases.py).
"""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx
import pytest

from statefork.engine.kernel import DrainPolicy
from statefork.replay.auditing import audit
from tests.integration.drain_kit import Scene, open_scene
from tests.integration.postgres_kit import needs_postgres, session

pytestmark = [pytest.mark.anyio, needs_postgres]

SIBLINGS = ("left", "right")
FILE = "lamp.txt"


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


class Family(Scene):
    """Environment ``a`` and its children, and people with the cookies of a page that was forked along."""

    cookies: dict[str, str]

    async def ask(self, env: str, path: str, **data: str) -> httpx.Response:
        base_url = str(self.kernel.bindings(env)["site"].address["base_url"])
        async with httpx.AsyncClient(base_url=base_url, cookies=self.cookies, trust_env=False, timeout=30) as client:
            return await (client.post(path, data=data) if data else client.get(path))

    async def fork(self) -> None:
        results = await self.kernel.fork("a", list(SIBLINGS), drain=DrainPolicy(deadline_s=20))
        assert [result.error for result in results] == [None, None]

    def bodies(self, env: str) -> dict[str, str]:
        """Titles and texts of the environment's rows, read raw."""
        with session(self.kernel.bindings(env)["db"].address) as raw:
            return dict(raw.execute("SELECT title, body FROM notes_note").fetchall())


async def test_siblings_have_everything_of_one_generation_and_share_nothing(
    notes_on_postgres: Path, tmp_path: Path
) -> None:
    async with open_scene(Family, notes_on_postgres, tmp_path) as family:
        family.cookies = {}
        answer = await family.ask("a", "/login/", user="ann")
        family.cookies = dict(answer.cookies)
        await family.ask("a", "/add/", title="before", body="by a")
        await family.ask("a", "/upload/", name=FILE, body="by a")
        await family.fork()
        await the_parent_goes_on(family)
        for env in SIBLINGS:
            await is_of_the_moment_of_the_fork(family, env)
        await both_insert_the_same_key(family)
        await both_write_the_same_row_and_path(family)
    report = audit(tmp_path / "state")
    assert report.clean, report


async def the_parent_goes_on(family: Family) -> None:
    """Row, file, login: each is another one now, at the parent's."""
    await family.ask("a", "/login/", user="eve")
    with session(family.kernel.bindings("a")["db"].address) as raw:
        raw.execute("UPDATE notes_note SET body = 'after' WHERE title = 'before'")
    (Path(str(family.kernel.bindings("a")["media"].address["path"])) / FILE).write_text("after")


async def is_of_the_moment_of_the_fork(family: Family, env: str) -> None:
    """Case 9: the row, the file and the cookie's session are there, and of one generation, raw and through the site."""
    assert (await family.ask(env, "/whoami/")).text == "ann"
    assert (await family.ask(env, f"/media/{FILE}")).text == "by a"
    assert (await family.ask(env, "/search/?q=before")).json() == {"titles": ["before"]}
    assert (family.bodies(env), family.media(env)) == ({"first": "hello", "before": "by a"}, {FILE: "by a"})


async def both_insert_the_same_key(family: Family) -> None:
    """Case 1: at the same time, and each sees one row, under the number that it has alone."""
    answers: dict[str, httpx.Response] = {}

    async def insert(env: str) -> None:
        answers[env] = await family.ask(env, "/add/", title="unique", body=env)

    async with anyio.create_task_group() as tasks:
        for env in SIBLINGS:
            tasks.start_soon(insert, env)
    assert [answers[env].status_code for env in SIBLINGS] == [200, 200], family.server_log()
    assert answers["left"].json() == answers["right"].json(), "a sequence that siblings share"
    for env in SIBLINGS:
        assert (await family.ask(env, "/add/", title="unique")).status_code == 409
        assert family.bodies(env) == {"first": "hello", "before": "by a", "unique": env}
    assert family.titles() == ["before", "first"]


async def both_write_the_same_row_and_path(family: Family) -> None:
    """Case 8: what each reads is its own, and the source's is unchanged."""
    for env in SIBLINGS:
        with session(family.kernel.bindings(env)["db"].address) as raw:
            raw.execute("UPDATE notes_note SET body = %s WHERE title = 'before'", (env,))
        (Path(str(family.kernel.bindings(env)["media"].address["path"])) / FILE).write_text(env)
    for env, text in {"a": "after", "left": "left", "right": "right"}.items():
        assert (family.bodies(env)["before"], (await family.ask(env, f"/media/{FILE}")).text) == (text, text)
