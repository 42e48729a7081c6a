"""What files take where extents are shared: each extent once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import _allocated as allocated  # a benchmark is a script, and no package

from statefork.adapters.resources import reflink


def test_extents_that_overlap_count_once() -> None:
    assert allocated._union([(0, 10), (5, 12), (20, 30), (20, 30), (21, 22)]) == 22
    assert allocated._union([]) == 0


def test_a_file_by_two_names_takes_its_bytes_once_and_holes_take_none(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "one").write_bytes(data)
    with (tmp_path / "one").open("rb") as file:
        try:
            list(reflink.extents_of(file.fileno()))
        except OSError:
            pytest.skip("this file system does not say where extents lie")
    before = allocated.allocated_bytes(tmp_path)
    assert before >= len(data)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert allocated.allocated_bytes(tmp_path) == before
    (tmp_path / "three").write_bytes(data)
    assert allocated.allocated_bytes(tmp_path) == 2 * before
