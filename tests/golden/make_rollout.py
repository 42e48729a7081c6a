"""Makes the golden rollouts of the present format: files of an export, which must replay for ever::

    python tests/golden/make_rollout.py tests/golden/rollout-v2

``rollout.statefork`` is a short trajectory as it was; in ``bad.statefork`` the third action was recorded with another
outcome than it has, which a replay must catch. What was made once is never made again: it refuses to write where there
is something already.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from statefork.adapters.interfaces.python import open_engine
from statefork.adapters.resources.memory import MemoryResource

CONTRACT = """[contract]
name = "notes"
snapshots = "every 2 actions"

[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"

[resources.page]
adapter = "memory"
initial = { count = 1 }
"""
ACTIONS: tuple[dict[str, Any], ...] = (
    {"type": "put", "key": "basket", "value": "tea"},
    {"type": "add", "key": "count", "amount": 2},
    {"type": "add", "key": "count", "amount": 4},
    {"type": "get", "key": "count"},
    {"type": "delete", "key": "basket"},
)


@contextmanager
def lying() -> Iterator[None]:
    """In the body the third action adds one more than it was told to."""
    act = MemoryResource.act

    async def wrong(self: MemoryResource, binding: Any, action: Any) -> Any:
        return await act(self, binding, {**action, "amount": 5} if action.get("amount") == 4 else action)

    setattr(MemoryResource, "act", wrong)  # noqa: B010 - for a moment
    try:
        yield
    finally:
        setattr(MemoryResource, "act", act)  # noqa: B010 - as it was


async def make(folder: Path, name: str) -> None:
    with TemporaryDirectory() as state:
        async with open_engine(folder / "notes.toml", state=Path(state)) as engine:
            env = await engine.create("notes")
            for action in ACTIONS:
                await env.act(action)
            await engine.export(env.name, folder / f"{name}.statefork")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir()
    (target / "notes.toml").write_text(CONTRACT)
    with closing(sqlite3.connect(target / "notes.sqlite3")) as connection, connection:
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, title TEXT)")
        connection.execute("INSERT INTO notes VALUES (1, 'tea')")
    anyio.run(make, target, "rollout")
    with lying():
        anyio.run(make, target, "bad")
