"""Makes the golden journal of the present format, and damaged copies of it::

    python tests/golden/make_journal.py tests/golden/journal-v2

It is run once for each format, and once more beside it when kinds of events or fields were added (``journal-v1-slots``,
``-keys``, ``-recovery``, ``-probes``, ``-places``, ``-import``, ``-outside``, ``-kept``, ``-rest``, ``-policies``);
what it made is never made again: it must stay readable for ever. So it refuses to write where there is something
already.
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
from statefork.journal.values import Component, Held, Moment, Observation, Pruned, Rest, Sealed

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
        digest=DIGEST,
        url="http://shop.example/",
        title="Shop",
        snapshot=DIGEST,
        parts={"tab-1": DIGEST},
        pixels=True,
        rest=Rest(selectors=("#clock",), snapshot=DIGEST, screenshot=DIGEST),
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
    replayed = {"env": "shop-1", "source": origin, "actions": 1, "verdict": "exact-state"}
    verdict = ev.ReplayVerdict(at=T + 16, child="shop-2", copied_from="shop-5", **replayed)
    yield (Append("act/shop-1", (verdict,)),)
    parked = ev.EnvironmentParked(at=T + 17, env="shop-1", generation=1, reason="closing")
    retired = ev.EnvironmentRetired(at=T + 18, env="shop-2", generation=1)
    yield Append("env/shop-1", (parked,), exactly(8)), Append("env/shop-2", (retired,), exactly(2))
    answered = ev.CommandAnswered(
        at=T + 18, env="shop-2", key="rollout 7, step 3", request="retire shop-2", generation=1
    )
    yield (Append("env/shop-2", (answered,), exactly(3)),)
    yield from ended(child)
    yield from of_another_place()
    yield from imported()
    yield from outside()
    yield from kept()
    yield from chosen()


def ended(child: Moment) -> Iterator[tuple[Append, ...]]:
    """A recovery, and the end of the engine."""
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


def kept() -> Iterator[tuple[Append, ...]]:
    """An action under given chance and time; then a generation goes, and another one is marked."""
    place = {"env": "shop-5", "generation": 1, "epoch": 1, "activation": 1, "lease": 1, "number": 1}
    acted = ev.ActionBegun(at=T + 29, action={"type": "click"}, seed="5eed", clock=T + 28.5, **place)
    yield (Append("act/shop-5", (acted, ev.ActionEnded(at=T + 30, outcome="ok", **place))),)
    first = Moment(env="shop-5", generation=1)
    born = ev.EnvironmentCreated(at=T + 28, env="shop-5", contract=DIGEST, how="create", origin=first)
    common = {"env": "shop-5", "epoch": 1, "contract": DIGEST}
    published = [
        ev.GenerationPublished(
            at=T + 30 + number,
            transition=f"shop-5/{number}",
            op="snapshot" if number > 1 else "create",
            generation=number,
            manifest=manifest(f"w{number}"),
            actions=number - 1,
            **common,
        )
        for number in (1, 2, 3)
    ]
    gone = Pruned(generation=2, nearest=first, actions=1)
    pruned = ev.GenerationsPruned(at=T + 34, env="shop-5", retention="last 1", pruned=(gone,))
    marked = ev.GenerationMarked(at=T + 35, env="shop-5", generation=3, mark="before checkout")
    yield (Append("env/shop-5", (born, *published, pruned, marked), NO_STREAM),)


def chosen() -> Iterator[tuple[Append, ...]]:
    """What is kept is chosen, and a generation goes by it; then the contract is to say it again."""
    env, first = "shop-6", Moment(env="shop-6", generation=1)
    born = ev.EnvironmentCreated(at=T + 36, env=env, contract=DIGEST, how="create", origin=first)
    policy = ev.PolicyChosen(at=T + 37, env=env, snapshots="every 5 actions", retention="last 1")
    published = [
        ev.GenerationPublished(
            at=T + 36 + number,
            env=env,
            transition=f"{env}/{number}",
            op="snapshot" if number > 1 else "create",
            generation=number,
            epoch=1,
            contract=DIGEST,
            manifest=manifest(f"x{number}"),
        )
        for number in (1, 2, 3)
    ]
    gone = Pruned(generation=2, nearest=first, actions=0)
    pruned = ev.GenerationsPruned(at=T + 40, env=env, retention="last 1", pruned=(gone,), by="policy")
    given_up = ev.PolicyChosen(at=T + 41, env=env, snapshots="every 5 actions")
    yield (Append(f"env/{env}", (born, published[0], policy, *published[1:], pruned, given_up), NO_STREAM),)


def outside() -> Iterator[tuple[Append, ...]]:
    """What pages asked of hosts outside of their world: answered, failed, and given back."""
    common = {"env": "shop-1", "generation": 1, "epoch": 1, "activation": 1, "after_action": 1, "method": "GET"}
    host = "https://cdn.example.com"
    script = ev.ExchangeRecorded(
        at=T + 27,
        lease=3,
        asked=1,
        cause="action",
        url=f"{host}/lib.js?v=1",
        headers={"accept": "*/*"},
        status=200,
        answer_headers=(("Content-Type", "text/javascript"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")),
        answer=DIGEST,
        **common,
    )
    failed = ev.ExchangeRecorded(
        at=T + 28, lease=5, asked=3, cause="", url=f"{host}/poll", error="can't connect: refused", **common
    )
    sent = common | {"method": "POST"}
    given = ev.ExchangeRecorded(
        at=T + 29, lease=4, asked=2, cause="binding", url=f"{host}/", body=DIGEST, status=204, given=True, **sent
    )
    yield (Append("act/shop-1", (script, failed, given), ANY),)


def imported() -> Iterator[tuple[Append, ...]]:
    """An environment that came in a file: what was done in it was done elsewhere, and is told first."""
    env = "shop-4"
    first = Moment(env=env, generation=1)
    born = ev.EnvironmentCreated(at=T + 25, env=env, contract=DIGEST, how="import", origin=first)
    begun = ev.TransitionBegun(at=T + 25, env=env, transition="shop-4/1", op="import", base=0)
    yield (Append(ev.control_stream(env), (born, begun), NO_STREAM),)
    place = {"env": env, "generation": 1, "epoch": 1, "activation": 0, "lease": 0, "number": 1}
    conditions = {"seed": "00ff", "clock": 1_700_000_000.5}
    act = ev.ActionBegun(at=T - 99, action={"type": "goto", "url": "http://shop.example/"}, **place, **conditions)
    yield (Append(ev.activity_stream(env), (act, ev.ActionEnded(at=T - 98, outcome="ok", **place))),)
    common = {"env": env, "transition": "shop-4/1", "epoch": 1, "contract": DIGEST, "manifest": manifest("v4")}
    brought = (
        ev.GenerationPublished(at=T - 100, op="import", generation=1, **common),
        ev.GenerationPublished(at=T - 97, op="snapshot", generation=2, actions=1, **common),
    )
    there = Moment(env="shop-1", generation=7)
    ended = ev.EnvironmentImported(
        at=T + 26,
        env=env,
        transition="shop-4/1",
        generation=2,
        journal="another",
        source=there,
        moments=(Moment(env="shop-1", generation=1), there),
        heads=DIGEST,
        file=DIGEST,
        statefork="0.1.0",
    )
    yield (Append(ev.control_stream(env), (*brought, ended), exactly(2)),)


def of_another_place() -> Iterator[tuple[Append, ...]]:
    """What the engine of another state directory adds, where several share the journal."""
    place, env = "b7c1d0e2f3a49586", "shop-3"
    started = ev.EngineStarted(at=T + 22, run="run-1", pid=17, statefork="0.1.0", where="/srv/two on a machine")
    yield (Append(ev.engine_stream(place), (started,)),)
    first = Moment(env=env, generation=1)
    born = ev.EnvironmentCreated(at=T + 23, env=env, contract=DIGEST, how="create", origin=first, place=place)
    begun = ev.TransitionBegun(at=T + 23, env=env, transition="shop-3/1", op="create", base=0)
    given_up = ev.TransitionAborted(
        at=T + 24, env=env, transition="shop-3/1", op="create", code="resource_failed", reason="bind"
    )
    yield (Append(ev.control_stream(env), (born, begun, given_up), NO_STREAM),)


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
