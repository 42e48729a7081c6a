"""Makes the golden journal of the present format, and damaged copies of it::

    python tests/golden/make_journal.py tests/golden/journal-v2

It is run once for each format, and once more beside it when kinds of events or fields were added (``journal-v1-slots``,
``-keys``, ``-recovery``, ``-probes``); what it made is never made again: it must stay readable for ever. So it refuses
to write where there is something already.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec

from statefork.journal import events as ev
from statefork.journal.log import ANY, NO_STREAM, Append, exactly
from statefork.journal.sqlite import open_sqlite_journal
from statefork.journal.values import Component, Held, Moment, Observation, Sealed

T = 1_760_000_000.25
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def manifest(version: str) -> dict[str, Component]:
    db = Sealed(journal="j", resource="db", adapter="sqlite", version=version, data={"path": f"resources/db/{version}"})
    browser = Sealed(journal="j", resource="browser", adapter="browser", version=version, data={"tabs": 2})
    return {
        "db": Component(sealed=db, durability="authoritative"),
        "browser": Component(sealed=browser, durability="authoritative", depends_on=("db",)),
    }


def appends() -> Iterator[tuple[Append, ...]]:
    """A short history with every kind of event."""
    yield (Append("engine", (ev.EngineStarted(at=T, run="run-1", pid=4242, statefork="0.1.0"),)),)
    contract = ev.ContractRegistered(at=T, digest=DIGEST, name="shop", text='[contract]\nname = "shop" # Läden\n')
    yield (Append("engine", (contract, ev.BaseProvisioned(at=T + 1, contract=DIGEST, manifest=manifest("base")))),)
    origin = Moment(env="shop-1", generation=1)
    born = ev.EnvironmentCreated(at=T + 2, env="shop-1", contract=DIGEST, how="create", origin=origin)
    begun = ev.TransitionBegun(at=T + 2, env="shop-1", transition="t1", op="create", base=0)
    yield (Append("env/shop-1", (born, begun), NO_STREAM),)
    common = {"env": "shop-1", "contract": DIGEST}
    published = ev.GenerationPublished(
        at=T + 3, transition="t1", op="create", generation=1, epoch=1, manifest=manifest("base"), **common
    )
    took = {"timings_ms": {"bind": 12.5}, "probed_ms": {"db": 2.5, "browser": 9.75}}
    active = ev.EnvironmentActivated(at=T + 4, env="shop-1", generation=1, activation=1, **took)
    yield (Append("env/shop-1", (published, active), exactly(2)),)
    place = {"env": "shop-1", "generation": 1, "epoch": 1, "lease": 1}
    action = {
        "type": "fill",
        "label": "Search",
        "text": "ca\u0301fe \u2028 🙂",
        "nested": {"b": [1, 2.5, None], "a": True},
    }
    seen = Observation(
        digest=DIGEST, url="http://shop.example/", title="Shop", snapshot=DIGEST, parts={"tab-1": DIGEST}
    )
    refused = {"env": "shop-1", "epoch": 1, "activation": 1, "method": "POST", "url": "http://shop.example/basket"}
    yield (
        Append(
            "act/shop-1",
            (
                ev.ActionBegun(at=T + 5, activation=1, number=1, action=action, **place),
                ev.ActionEnded(
                    at=T + 6, activation=1, number=1, outcome="ok", observation=seen, elapsed_ms=80.0, **place
                ),
                ev.InputRecorded(
                    at=T + 7,
                    after_action=1,
                    method="POST",
                    url="http://shop.example/",
                    body=DIGEST,
                    status=302,
                    **place,
                ),
                ev.RequestRefused(at=T + 8, status=503, code="environment_frozen", detail="snapshot", **refused),
                ev.EvaluationRecorded(
                    at=T + 9, name="basket", score=0.5, after_action=1, detail={"rows": [1, "x"]}, **place
                ),
                ev.LeaseRevoked(
                    at=T + 10, env="shop-1", generation=1, lease=2, holder="GET /slow", reason="drain deadline"
                ),
                ev.EnvironmentQueued(at=T + 11, env="shop-1", kind="browser", position=2),
            ),
            ANY,
        ),
    )
    held = (Held(holder="GET /slow", how="revoked", waited_ms=5000.0),)
    stopped = {"code": "torn_cut", "reason": "db", "component": "db", "activation": 2}
    yield (
        Append(
            "env/shop-1",
            (
                ev.TransitionBegun(at=T + 11, env="shop-1", transition="t2", op="snapshot", base=1),
                ev.TransitionDrained(at=T + 12, env="shop-1", transition="t2", held=held),
                ev.TransitionAborted(at=T + 13, env="shop-1", transition="t2", op="snapshot", **stopped),
            ),
            exactly(4),
        ),
    )
    child = Moment(env="shop-2", generation=1)
    first = ev.EnvironmentCreated(
        at=T + 14, env="shop-2", contract=DIGEST, how="fork", parent=origin, origin=child, inherited_actions=1
    )
    forked = ev.GenerationPublished(
        at=T + 15,
        env="shop-2",
        transition="t3",
        op="fork",
        generation=1,
        epoch=1,
        contract=DIGEST,
        manifest=manifest("v2"),
        source=origin,
        actions=1,
        lost_actions=(2, 3),
        timings_ms={"branch": 1.5},
    )
    yield (
        Append(
            "env/shop-1", (ev.EnvironmentForked(at=T + 15, env="shop-1", generation=1, child="shop-2"),), exactly(7)
        ),
        Append("env/shop-2", (first, forked), NO_STREAM),
    )
    verdict = ev.ReplayVerdict(at=T + 16, env="shop-1", child="shop-2", source=origin, actions=1, verdict="exact-state")
    yield (Append("act/shop-1", (verdict,)),)
    parked = ev.EnvironmentParked(at=T + 17, env="shop-1", generation=1, reason="closing")
    retired = ev.EnvironmentRetired(at=T + 18, env="shop-2", generation=1)
    yield Append("env/shop-1", (parked,), exactly(8)), Append("env/shop-2", (retired,), exactly(2))
    answered = ev.CommandAnswered(
        at=T + 18, env="shop-2", key="rollout 7, step 3", request="retire shop-2", generation=1
    )
    yield (Append("env/shop-2", (answered,), exactly(3)),)
    orphan = ev.OrphanCollected(at=T + 19, resource="db", kind="branch", name="b-7")
    recovered = ev.RecoveryFinished(
        at=T + 20,
        run="run-1",
        settled=("t2",),
        recovered=(child,),
        orphans=1,
        lost={child.env: (2, 3)},
        orphan_kinds={"branch": 1},
        elapsed_ms=12.5,
    )
    yield (Append("engine", (orphan, recovered, ev.EngineStopped(at=T + 21, run="run-1"))),)


async def make(folder: Path) -> None:
    path = folder / "journal.sqlite3"
    async with open_sqlite_journal(path, clock=lambda: T) as journal:
        for parts in appends():
            await journal.append(*parts)
        lines = [msgspec.json.encode(recorded) async for recorded in journal.read()]
    (folder / "lock").unlink()
    (folder / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def damage(folder: Path) -> None:
    """What must be caught: one byte of an event, an event that is gone, the last event gone, the file's end gone."""
    good = (folder / "journal.sqlite3").read_bytes()
    at = good.index(b'"label":"Search"')
    (folder / "flipped-byte.sqlite3").write_bytes(good[: at + 9] + b"s" + good[at + 10 :])
    for name, position in (("gap", "5"), ("cut-tail", "(SELECT max(position) FROM events)")):
        path = folder / f"{name}.sqlite3"
        path.write_bytes(good)
        connection = sqlite3.connect(path)
        connection.execute(f"DELETE FROM events WHERE position = {position}")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    (folder / "cut-file.sqlite3").write_bytes(good[: len(good) * 2 // 5])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir()
    anyio.run(make, target)
    damage(target)
