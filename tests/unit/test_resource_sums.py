"""Sums of sealed layers: made in the background, whatever becomes of the layers meanwhile."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import pytest

from statefork.adapters.resources import sums
from statefork.adapters.resources.browser.state import Profile, Stored, digest_of, encode
from statefork.adapters.resources.sums import SUMS_NAME, Summing
from statefork.replay.audit.bytes import _profile_of


def sum_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """Three layers, one with all that a tree can hold."""
    for name in ("one", "two", "three"):
        (tmp_path / name / "tree" / "folder").mkdir(parents=True)
        (tmp_path / name / "tree" / "folder" / "file").write_text(name)
    (tmp_path / "one" / "index").write_bytes(b"index")
    (tmp_path / "one" / "tree" / "link").symlink_to("folder/file")
    (tmp_path / "one" / "tree" / "link to a folder").symlink_to("folder")
    (tmp_path / "one" / "tree" / "nowhere").symlink_to("/nowhere")
    return tmp_path


def test_every_file_and_link_is_in_them(layers: Path) -> None:
    summing = Summing("db", layers.joinpath)
    summing.want(["one", "gone", "two"])
    summing.stop(60)
    assert json.loads((layers / "one" / SUMS_NAME).read_bytes()) == {
        "index": sum_of(b"index"),
        "tree/folder/file": sum_of(b"one"),
        "tree/link": "link " + sum_of(b"folder/file"),
        "tree/link to a folder": "link " + sum_of(b"folder"),
        "tree/nowhere": "link " + sum_of(b"/nowhere"),
    }
    assert (layers / "two" / SUMS_NAME).exists()
    assert not (layers / "gone").exists()
    assert not any(thread.name == "sums of db" for thread in threading.enumerate())


def test_they_are_made_once(layers: Path) -> None:
    summing = Summing("db", layers.joinpath)
    summing.want(["one"])
    summing.stop(60)
    (layers / "one" / "tree" / "folder" / "file").write_text("changed")
    summing.want(["one"])
    summing.stop(60)
    assert json.loads((layers / "one" / SUMS_NAME).read_bytes())["tree/folder/file"] == sum_of(b"one")


def test_a_stop_does_not_wait_for_all_of_them(layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    summing = Summing("db", layers.joinpath)

    def slow(self: Summing, path: Path) -> str:
        entered.set()
        assert go_on.wait(60)
        return "sum"

    monkeypatch.setattr(sums.Summing, "_file", slow)
    summing.want(["one", "two", "three"])
    assert entered.wait(60)
    ended = threading.Thread(target=summing.stop, args=(0.0,))
    ended.start()
    while not summing._stopping:
        ended.join(0.001)
    go_on.set()
    ended.join(60)
    assert not ended.is_alive()
    assert not (layers / "three" / SUMS_NAME).exists()
    summing.want(["three"])
    summing.stop(60)
    assert (layers / "three" / SUMS_NAME).exists(), "it can be used again"


def test_the_audit_finds_the_profile_in_the_file_that_the_browser_keeps() -> None:
    profile = Profile(start="http://shop.example/", cookies=({"name": "a\u2028", "value": "7", "domain": "x"},))
    content = _profile_of(encode(Stored(profile=profile, witnesses=("w",))))
    assert content is not None
    assert sum_of(content) == digest_of(profile)
