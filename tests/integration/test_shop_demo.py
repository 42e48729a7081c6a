"""The demo as people run it: one command, in a process of its own, on a state directory that has the base already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgres_kit import needs_postgres
from tests.integration.shop_kit import needs_shop, seeded

pytestmark = [pytest.mark.shop, pytest.mark.browser, pytest.mark.timeout(900), needs_shop]


def run_demo(state: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "statefork", "demo", "--envs", "4", "--state", str(state), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"})
    return done.returncode, json.loads(done.stdout), done.stderr


def test_the_demo_is_as_it_should_be_and_can_be_repeated(tmp_path: Path) -> None:
    status, found, said = run_demo(seeded(tmp_path / "state"))
    assert (status, found["problems"]) == (0, []), said
    assert found["verdict"].startswith("All as it should be: 8 environments on one server and one browser")
    assert [env["score"] for env in map(_scored, found["environments"])] == [1.0] * 8
    siblings = [env for env in found["environments"] if env["origin"] != "base"]
    assert {env["origin"] for env in siblings} == {"shop-1@2"}
    assert all(env["inherited_actions"] == 10 for env in siblings)
    assert {timing["op"] for timing in found["timings"]} == {
        *("create", "snapshot", "reset", "restore", "fork"),
        "fork, 4 at once",
    }
    assert all(0 < timing["stores_ms"] < timing["ready_ms"] for timing in found["timings"])
    assert {runtime["name"]: runtime["processes"] for runtime in found["memory"]["runtimes"]}["shop"] == 1
    assert found["replayed"]["exact"]
    assert found["audited"]["clean"]
    pictures = sorted(Path(found["screenshots"]).glob("*/*.png"))
    assert len(pictures) == sum(env["screenshots"] for env in found["environments"])
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)

    status, again, said = run_demo(tmp_path / "state")
    assert (status, again["run"], again["problems"]) == (0, 2, []), said
    assert "creating tables" not in said, "the base is used again"
    assert {env["name"] for env in again["environments"]}.isdisjoint(env["name"] for env in found["environments"])


@needs_postgres
def test_the_demo_is_the_same_on_postgresql(tmp_path: Path) -> None:
    """One web server, one PostgreSQL, one browser; evaluators, replay and audit find what they find with SQLite."""
    state = seeded(tmp_path / "state", "shop-postgres")
    status, found, said = run_demo(state, "--database", "postgres")
    assert (status, found["problems"]) == (0, []), said
    assert found["verdict"].startswith(
        "All as it should be: 8 environments on one server, one PostgreSQL and one browser"
    )
    assert [env["score"] for env in map(_scored, found["environments"])] == [1.0] * 8
    assert found["replayed"]["exact"]
    assert found["audited"]["clean"]
    assert all("rewind" not in timing["op"] for timing in found["timings"])


def _scored(env: dict[str, Any]) -> dict[str, Any]:
    return {"score": min(check["score"] for check in env["checked"])}
