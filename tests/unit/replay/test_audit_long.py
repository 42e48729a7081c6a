"""Long journals: what an audit holds in memory does not grow with them."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from statefork.replay.audit import spill
from statefork.replay.audit.contracts import Contracts
from statefork.replay.audit.rows import Row
from statefork.replay.audit.run import Audit
from statefork.replay.audit.spill import Kept
from statefork.replay.audit.versions import Versions
from statefork.replay.auditing import EngineFold

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "audit.py"
EVENTS = 50_000
HOT = 160  # a little more than are in use at a time: far fewer than there are


def benchmark() -> ModuleType:
    """The journal that the benchmark measures with."""
    spec = importlib.util.spec_from_file_location("benchmark_of_the_audit", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def rows(events: int) -> Iterator[Row]:
    """Every hash right."""
    tails: dict[str, tuple[int, str]] = {}
    made = benchmark()
    for position, (stream, event) in enumerate(made.Teller().journal(events), 1):
        version, previous = tails.get(stream, (0, "0" * 64))
        raw = json.dumps(event, separators=(",", ":"))
        link = made.link_of(previous, stream, version + 1, raw)
        tails[stream] = (version + 1, link)
        yield Row(position=position, stream=stream, version=version + 1, digest=link, raw=raw.encode())


def held(thing: Any) -> int:
    """How many things an object of the audit has in its containers, and in those of what it is made of."""
    count = 0
    for value in vars(thing).values():
        if isinstance(value, Kept):
            count += value.hot
        elif isinstance(value, dict | list | set | tuple):
            count += len(value)
        elif isinstance(value, Contracts | Versions):
            count += held(value)
    return count


def test_fifty_thousand_events_are_held_as_one_thousand_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "HOT_MAX", HOT)
    held_at: dict[int, int] = {}
    audit = Audit([EngineFold])

    def count(position: int) -> None:
        if position in (1_000, EVENTS // 2, EVENTS):
            held_at[position] = sum(held(checker) for checker in audit._checkers) + held(audit.heads)

    report = audit.run(rows(EVENTS), count)
    assert report.clean, list(report.lines())
    assert report.events == EVENTS
    assert report.environments > 300
    assert max(held_at.values()) < 5 * HOT, held_at


def test_records_go_out_of_memory_and_come_back() -> None:
    kept: Kept[list[int]] = Kept(hot_max=4)
    for number in range(20):
        kept.put(f"k{number:02}", [number])
    assert len(kept) == 20
    assert kept.hot <= 4
    found = kept.get("k03")
    assert found == [3]
    found.append(33)
    for number in range(10, 20):
        assert kept.get(f"k{number}") == [number]
    assert kept.get("k03") == [3, 33], "what was changed in place was kept"
    kept.put("k03", [4])
    assert len(kept) == 20
    kept.drop("k03")
    kept.drop("k03")
    kept.drop("nothing")
    assert kept.get("k03") is None
    assert len(kept) == 19
    assert [record[0] for record in kept.values()] == [number for number in range(20) if number != 3]
    kept.close()
