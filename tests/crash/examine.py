"""Looking at what a killed engine left, from outside and again through a new engine.

Nothing here asks the engine whether all is well: the journal is folded beforehand, contents are read from database
files and directories with the standard library, and what lies on disk is compared with what the records name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from statefork.adapters.interfaces.assembly import Assembled
from statefork.adapters.resources.files.mounts import mounted_below
from statefork.engine.capsule import Capsule, Phase
from statefork.engine.kernel import Kernel
from statefork.engine.world import World
from statefork.journal.store import JOURNAL_NAME, open_state
from statefork.journal.values import Branch, Moment, Sealed
from statefork.replay.audit import audit
from statefork.replay.export.importing import SCRATCH
from statefork.replay.rebuild import differences, rebuild
from tests.crash.hand import FOLDER, files_in, rows_in
from tests.crash.hands import Facts, Hands, holds_of, state_folders

AT_REST = (Phase.PARKED, Phase.RETIRED)


async def fold(state: Path) -> World:
    """What the journal says, before anybody repairs anything. Where there is none yet, nothing happened."""
    if not (state / JOURNAL_NAME).exists():
        return World()
    async with open_state(state, write=False) as opened:
        return await rebuild(opened.journal)


def audited(state: Path) -> None:
    """The history is what it claims to be."""
    report = audit(state)
    assert report.clean, "\n".join(report.lines())


def tidy(state: Path, *, live: frozenset[str] = frozenset()) -> None:
    """No file, directory or mount that no record names; no branch but those."""
    mounted = {path.parent.name for path in mounted_below(state) if "branches" in path.parts}
    assert mounted <= live, f"mounted: {mounted - live}"
    if not live:
        assert [path.name for path in (state / "blobs" / "tmp").iterdir()] == []
    assert not (state / SCRATCH).exists() or list((state / SCRATCH).iterdir()) == []
    for name, folder in state_folders(state).items():
        records = {path.stem: json.loads(path.read_bytes()) for path in (folder / "sealed").iterdir()}
        branches = {path.stem: json.loads(path.read_bytes()) for path in (folder / "branches").glob("*.json")}
        named = {layer for record in records.values() for layer in record["layers"]}
        for branch in branches.values():
            named |= {*branch["layers"], *([branch["upper"]] if branch.get("upper") else [])}
        assert branches.keys() <= live, f"branches of {name}: {branches.keys() - live}"
        assert {path.name for path in (folder / "branches").iterdir() if path.is_dir()} <= live, name
        layers = {path.name for path in (folder / "layers").iterdir()}
        assert layers == named, f"layers of {name}: {layers - named} too many, {named - layers} missing"
        assert {path.name for path in folder.iterdir()} <= {"layers", "sealed", "branches", "tmp"}, name
        assert list((folder / "tmp").glob("*")) == [], f"half-made things of {name}"


def content_of_version(state: Path, resource: str, sealed: Sealed) -> frozenset[str]:
    """The witnesses in a sealed version, without the adapter. Witnesses are only ever added, so layers add up."""
    if resource == "db":
        return rows_in(state / str(sealed.data["path"]), mode="ro&immutable=1")
    root = state / "resources" / resource
    record = json.loads((root / "sealed" / f"{sealed.version}.json").read_bytes())
    trees = [root / "layers" / layer / "tree" for layer in record["layers"]]
    return frozenset().union(*(files_in(tree) for tree in trees if (tree / FOLDER).is_dir()))


def contents(kernel: Kernel, state: Path, facts: Facts) -> None:
    """Every generation ever published that was not pruned holds what it had to, in both stores."""
    for env, capsule in kernel.environments.items():
        kept = {number: one for number, one in capsule.generations.items() if not one.pruned}
        for number, generation in kept.items():
            wanted = frozenset(holds_of(kernel, facts, Moment(env=env, generation=number)))
            for name in ("db", "media"):
                found = content_of_version(state, name, generation.manifest[name].sealed)
                assert found == wanted, f"{name} of {env}@{number} holds {set(found)}, not {set(wanted)}"


async def heads(kernel: Kernel, hands: Hands) -> None:
    """Every environment comes to life with what its head holds, or what was written since, in the row and the file."""
    for env, capsule in kernel.environments.items():
        if capsule.phase is Phase.RETIRED:
            continue
        await kernel.activate(env)
        wanted = frozenset(hands.tail(env))
        place = {name: Path(str(kernel.bindings(env)[name].address["path"])) for name in ("db", "media")}
        shown = {"db": rows_in(place["db"]), "media": files_in(place["media"])}
        assert shown == {"db": wanted, "media": wanted}, f"{env} shows {shown}, not {wanted}"


def acknowledged(kernel: Kernel, facts: Facts) -> None:
    """What was promised before the kill is there."""
    for env, last in facts.done.items():
        capsule = kernel.environments.get(env)
        assert capsule is not None, f"{env} is gone"
        if last == "retired":
            assert capsule.phase is Phase.RETIRED, f"{env} lives again"
        else:
            number = int(last.rpartition("@")[2])
            assert number in capsule.generations, f"{last} is gone"
    for env, policies in facts.kept.items():
        held = (kernel.upkeep.snapshots_of(env), kernel.upkeep.retention_of(env))
        for policy, one in zip(policies, held, strict=True):
            assert policy in ("", str(one)), f"{env} keeps by {one}, and {policy} was acknowledged"


async def reached(kernel: Kernel) -> None:
    """The inventories hold nothing but what generations and bases name; nothing is bound yet."""
    versions = kernel.world.reachable()
    for name, resource in kernel.resources.items():
        async for handle in resource.inventory():
            assert not isinstance(handle, Branch), f"a branch is left: {handle}"
            assert isinstance(handle, Sealed), handle
            assert (name, handle.version) in versions, f"a version is left: {handle}"


def settled(kernel: Kernel, before: World) -> None:
    """The old or the new generation, and the losses by name: judged by the fold of what the killed engine left."""
    for env, old in before.environments.items():
        now = kernel.environments.get(env)
        if not old.generations:
            assert now is None or now.phase is Phase.RETIRED, f"{env} was never published"
            continue
        assert now is not None
        assert now.phase in AT_REST, now.phase
        assert now.transition is None
        if old.bound or old.phase is Phase.RECOVERING:
            recovered_well(kernel, old, now)
        else:
            assert now.moment == old.moment, f"{env} rested, and was changed"
    assert {moment.env for moment in kernel.recovered.recovered} == {
        env for env, old in before.environments.items() if old.bound or old.phase is Phase.RECOVERING
    }
    under_way = {old.transition.id for old in before.environments.values() if old.transition is not None}
    assert set(kernel.recovered.settled) == under_way


def recovered_well(kernel: Kernel, old: Capsule, now: Capsule) -> None:
    """One more generation, with the components of the last and the numbers of what was lost."""
    assert (now.generation, now.head.op, now.head.epoch) == (old.generation + 1, "recover", old.generation + 1)
    assert now.head.manifest == old.head.manifest
    assert now.head.lost_actions == tuple(range(old.head.actions + 1, old.actions + 1))
    assert kernel.recovered.lost[old.env] == now.head.lost_actions


async def opened_well(assembled: Assembled, before: World, facts: Facts) -> None:
    """All that must hold when a new engine has just opened."""
    kernel, state = assembled.kernel, assembled.state
    acknowledged(kernel, facts)
    settled(kernel, before)
    await reached(kernel)
    tidy(state)
    contents(kernel, state, facts)
    assert differences(kernel.world, await rebuild(assembled.journal)) == ()


def serves(kernel: Kernel) -> frozenset[str]:
    """The branches of what is bound now."""
    return frozenset(branch.id for env in kernel.environments for branch in kernel.branches(env).values())


def summary(kernel: Kernel) -> dict[str, Any]:
    """For the test, beside what was asserted here."""
    return {
        "heads": {env: str(capsule.moment) for env, capsule in sorted(kernel.environments.items())},
        "recovered": [str(moment) for moment in kernel.recovered.recovered],
        "orphans": kernel.recovered.orphans,
        "clean": kernel.recovered.clean,
    }
