"""The audit of a state directory: a journal on disk, its blobs, and the stores' own records."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from statefork.journal.store import open_state
from statefork.replay.audit import Report, journal_length
from statefork.replay.auditing import audit, follow
from tests.unit.replay.true_state import edit


def found(report: Report) -> list[str]:
    """The invariants that were found broken."""
    return sorted({finding.invariant for finding in report.findings})


def test_a_sound_state_directory_is_clean(state: Path) -> None:
    report = audit(state)
    assert report.clean, list(report.lines())
    assert report.events == journal_length(state) > 20
    idle = [checked.invariant for checked in report.checked if not checked.looked_at]
    assert idle == ["I9"], "of a history without an abort or a revoked action I9 has nothing to say"


def test_it_can_be_audited_while_an_engine_runs(template: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()

    async def both() -> None:
        async with open_state(state, write=True):
            assert audit(state).clean

    anyio.run(both, backend="trio")


def test_an_audit_that_is_broken_off_lets_go_of_the_journal(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)

    def stop(position: int) -> None:
        raise InterruptedError(position)

    with pytest.raises(InterruptedError):
        audit(state, progress=stop)
    with pytest.raises(InterruptedError):
        follow(state, told=print, idle=lambda: False, looked=lambda position, _: stop(position) is None)
    gc.collect()
    assert ignored == []


def test_no_journal_is_unreadable(tmp_path: Path) -> None:
    report = audit(tmp_path)
    assert report.exit_code == 2
    assert "no journal" in report.unreadable[0]
    assert journal_length(tmp_path) == 0


def test_a_file_that_is_no_database_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").write_bytes(b"not a database at all, but long enough to be taken for one" * 50)
    assert audit(tmp_path).exit_code == 2


def flip(state: Path) -> None:
    edit(state, "update events set event = replace(event, 'snapshot', 'snapshos') where position = 12")


def cut_off(state: Path) -> None:
    edit(state, "delete from events where position = (select max(position) from events)")


def gap(state: Path) -> None:
    edit(state, "delete from events where position = 15")


def change_hash(state: Path) -> None:
    edit(state, "update events set hash = ? where position = 9", "0" * 64)


def lose_blob(state: Path) -> None:
    (blob,) = state.glob("blobs/[0-9a-f][0-9a-f]/*")
    blob.unlink()


def change_blob(state: Path) -> None:
    (blob,) = state.glob("blobs/[0-9a-f][0-9a-f]/*")
    blob.chmod(0o644)
    blob.write_bytes(b"coffee")


def lose_version(state: Path) -> None:
    sealed = min(state.glob("resources/db/layers/a-e1-*/*"))
    sealed.unlink()


def lose_record(state: Path) -> None:
    min(state.glob("resources/db/sealed/a-e1-*.json")).unlink()


def lose_layer(state: Path) -> None:
    layer = min(state.glob("resources/db/layers/a-e1-*"))
    for file in layer.iterdir():
        file.unlink()
    layer.rmdir()


def share_a_branch(state: Path) -> None:
    for name in ("x", "y"):
        record = {"handle": {"id": name, "data": {"path": "resources/db/branches/x/db"}}, "layers": [], "upper": ""}
        (state / "resources/db/branches").mkdir(exist_ok=True)
        (state / f"resources/db/branches/{name}.json").write_text(json.dumps(record))


def write_a_sealed_layer(state: Path) -> None:
    sealed = json.loads(min(state.glob("resources/db/sealed/a-e1-*.json")).read_bytes())
    record = {"handle": {"id": "x", "data": {}}, "layers": [], "upper": sealed["layers"][0]}
    (state / "resources/db/branches").mkdir(exist_ok=True)
    (state / "resources/db/branches/x.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("damage", "invariants"),
    [
        (flip, ["I10"]),
        (cut_off, ["I10"]),
        (gap, ["I10"]),
        (change_hash, ["I10"]),
        (lose_blob, ["I5"]),
        (change_blob, ["I5"]),
        (lose_version, ["I5"]),
        (lose_record, ["I5"]),
        (lose_layer, ["I5", "I6"]),
        (share_a_branch, ["I6"]),
        (write_a_sealed_layer, ["I6"]),
    ],
)
def test_damage_is_found(state: Path, damage: Callable[[Path], None], invariants: list[str]) -> None:
    damage(state)
    report = audit(state)
    assert set(invariants) <= set(found(report)), list(report.lines())
    if damage not in (flip, gap, cut_off):  # a lost event makes others look wrong, too
        assert found(report) == invariants, list(report.lines())
    assert report.exit_code == 1


def test_without_stores_only_the_journal_is_looked_at(state: Path) -> None:
    lose_blob(state)
    assert audit(state, stores=False).clean


def test_what_can_not_be_read_is_unreadable_and_no_violation(state: Path) -> None:
    (blob,) = state.glob("blobs/[0-9a-f][0-9a-f]/*")
    blob.unlink()
    blob.mkdir()
    report = audit(state)
    assert not report.findings
    assert report.exit_code == 2


def test_a_record_that_is_not_json_is_unreadable_and_no_violation(state: Path) -> None:
    (state / "resources/db/sealed/stray.json").write_text("{")
    report = audit(state)
    assert not report.findings
    assert report.exit_code == 2


def test_what_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite3").touch()
    report = audit(tmp_path)
    headline, reason = list(report.lines())[:2]
    assert headline == "unreadable: not one event could be read"
    assert "is not a statefork journal" in reason
    assert report.exit_code == 2
