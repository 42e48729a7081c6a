"""Records whose name reached the disk before a crash of the machine, and whose bytes did not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from statefork.adapters.resources.ledger import Ledger
from statefork.adapters.resources.records import BranchRecord, SealedRecord
from statefork.engine.errors import ResourceFailed
from statefork.journal.values import Branch, Sealed


def version(name: str) -> Sealed:
    return Sealed(journal="j", resource="media", adapter="files", version=name)


def ledger(state: Path) -> Ledger:
    """As it is when it was just opened."""
    return Ledger(state, "media", "files", "j")


def make(state: Path) -> Ledger:
    """Two versions of a layer each, and a branch."""
    made = ledger(state)
    for name in ("one", "two"):
        with made.new_layer(name) as (layer, place):
            (place / "file").write_text(name)
        made.put_sealed(SealedRecord(handle=version(name), layers=(layer,)))
    branch = Branch(journal="j", resource="media", adapter="files", id="b", env="a", epoch=1, base="one")
    made.put_branch(BranchRecord(handle=branch, over=version("one"), layers=made.sealed(version("one")).layers))
    return made


@pytest.mark.parametrize("bytes_left", [b"", b"\0" * 512])
def test_a_torn_version_is_listed_and_nothing_is_removed_until_it_is_settled(tmp_path: Path, bytes_left: bytes) -> None:
    made = make(tmp_path)
    (tmp_path / "resources/media/sealed/two.json").write_bytes(bytes_left)
    found = ledger(tmp_path)
    assert [handle.version for handle in found.handles() if isinstance(handle, Sealed)] == ["two", "one"]
    assert len(list((made.root / "layers").iterdir())) == 2, "one of them may be its own"
    with pytest.raises(ResourceFailed, match="lost its record"):
        found.sealed(version("two"))
    found.drop_sealed("two")
    again = ledger(tmp_path)
    assert [handle.version for handle in again.handles() if isinstance(handle, Sealed)] == ["one"]
    assert len(list((made.root / "layers").iterdir())) == 1


def test_a_torn_branch_is_given_up(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "resources/media/branches/b.json").write_bytes(b"")
    (tmp_path / "resources/media/branches/b").mkdir()
    found = ledger(tmp_path)
    assert found.find_branch("b") is None
    assert not list((tmp_path / "resources/media/branches").iterdir())
    assert found.sealed(version("one"))


def test_a_record_with_other_bytes_is_told_by_name(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "resources/media/sealed/two.json").write_bytes(b"{half")
    with pytest.raises(ResourceFailed, match=r"sealed/two\.json can't be read"):
        list(ledger(tmp_path).handles())


def test_a_versions_record_is_replaced_only_by_bytes_that_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path)
    forced: list[int] = []
    monkeypatch.setattr("statefork.adapters.resources.ledger.os.fsync", forced.append)
    record = made.sealed(version("one"))
    made.put_sealed(msgspec.structs.replace(record, digest="d"))
    assert len(forced) == 1
    made.put_sealed(msgspec.structs.replace(record, handle=version("three")))
    assert len(forced) == 1, "a new one is forced to the disk with its layers, where the contract wants that"
