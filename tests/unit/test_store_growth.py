"""When a store grows by itself, and the sizes that people write."""

from __future__ import annotations

from pathlib import Path

import pytest

from statefork.adapters.interfaces.store.growth import HOST_FREE_MIN, next_size
from statefork.adapters.interfaces.store.kinds import superblock
from statefork.adapters.interfaces.store.sizes import GIB, MIB, TIB, parse_size, show_size

PLENTY = 100 * TIB


@pytest.mark.parametrize(
    ("size", "free", "host_free", "limit", "wanted"),
    [
        (8 * GIB, 2 * GIB, PLENTY, 0, 0),
        (8 * GIB, 2 * GIB - 1, PLENTY, 0, 12 * GIB),
        (64 * GIB, 4 * GIB, PLENTY, 0, 0),
        (64 * GIB, 4 * GIB - 1, PLENTY, 0, 96 * GIB),
        (1 * TIB, GIB, PLENTY, 0, 1 * TIB + 32 * GIB),
        (8 * GIB, GIB, PLENTY, 9 * GIB, 9 * GIB),
        (8 * GIB, GIB, PLENTY, 8 * GIB, 0),
        (8 * GIB, GIB, PLENTY, 4 * GIB, 0),
        (8 * GIB, GIB, HOST_FREE_MIN + 100 * MIB, 0, 8 * GIB + 100 * MIB),
        (8 * GIB, GIB, HOST_FREE_MIN + 31 * MIB, 0, 0),
        (8 * GIB, GIB, 0, 0, 0),
        (330 * MIB, 0, PLENTY, 0, 495 * MIB),
    ],
)
def test_it_grows_by_half_as_far_as_it_may(size: int, free: int, host_free: int, limit: int, wanted: int) -> None:
    assert next_size(size, free, host_free, limit) == wanted


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("64K", 64 << 10), ("1.5g", 3 * GIB // 2), ("8 GiB", 8 * GIB), ("2TB", 2 * TIB)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1G", "1X", "1 G G", "G"])
def test_what_is_no_size_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


def test_sizes_are_written_in_their_largest_unit() -> None:
    assert [show_size(size) for size in (0, 1023, 1024, 330 * MIB, 8 * GIB, 3 * TIB // 2)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "330.0 MiB",
        "8.0 GiB",
        "1.5 TiB",
    ]


@pytest.mark.parametrize("data", [b"", b"XFSB", b"x" * 100_000])
def test_files_that_are_no_file_systems(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "image").write_bytes(data)
    assert superblock(tmp_path / "image") is None
