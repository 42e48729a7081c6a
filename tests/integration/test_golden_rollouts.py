"""Rollouts that were recorded by every format version there was replay; what was recorded wrongly is caught."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from statefork.adapters.interfaces.python import open_engine
from statefork.journal.errors import StateforkError
from statefork.replay.auditing import audit

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parent.parent / "golden"
ROLLOUTS = sorted(path.name for path in GOLDEN.glob("rollout-*"))


@pytest.fixture
def anyio_backend() -> str:
    return "trio"


@pytest.fixture(params=ROLLOUTS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what was recorded: nothing may write into the original."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / "golden"))


def test_the_first_format_is_among_them() -> None:
    assert "rollout-v1" in ROLLOUTS


async def test_a_golden_rollout_replays(golden: Path, tmp_path: Path) -> None:
    async with open_engine(golden / "notes.toml", state=tmp_path / "state") as engine:
        await engine.import_(golden / "rollout.statefork", "notes")
        result = await engine.replay("notes")
        assert (result.exact, result.actions, result.compared) == (True, 5, 5), result
        (middle,) = await engine.fork("notes#3")
        assert middle.made is not None
        assert middle.made.exact
    assert audit(tmp_path / "state").clean


async def test_a_bad_one_is_caught_at_its_action(golden: Path, tmp_path: Path) -> None:
    async with open_engine(golden / "notes.toml", state=tmp_path / "state") as engine:
        await engine.import_(golden / "bad.statefork", "notes")
        result = await engine.replay("notes")
        assert (result.verdict, result.first_divergence) == ("diverged", 3)


async def test_one_with_another_byte_is_refused(golden: Path, tmp_path: Path) -> None:
    file = golden / "rollout.statefork"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    async with open_engine(golden / "notes.toml", state=tmp_path / "state") as engine:
        with pytest.raises(StateforkError):
            await engine.import_(file, "notes")
        assert engine.environments() == []
