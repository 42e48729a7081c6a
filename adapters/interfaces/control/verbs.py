"""What the control door can do: each verb with its request and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.control.carrying import exported, imported
from statefork.adapters.interfaces.control.keeping import held, keep, said
from statefork.adapters.interfaces.control.stepping import step, stepped
from statefork.adapters.interfaces.control.watching import counting, progress
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.policies import policies
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.interfaces.views import Seen
from statefork.engine.errors import GenerationPruned, NotReady, UnknownRef
from statefork.engine.recovery import RecoveryReport
from statefork.engine.refs import Ref, parse_ref, resolve
from statefork.engine.settings import DrainPolicy
from statefork.journal.errors import JournalUnavailable
from statefork.journal.values import Json, Moment
from statefork.replay.verdict import RolloutResult


def _never(_request: Any) -> bool:
    return False


def _always(_request: Any) -> bool:
    return True


class Verb(NamedTuple):
    """One thing to ask for. ``ends``: it is given up when whoever asked is gone, since nothing is to stay of it."""

    request: type[ask.Request]
    answer: Callable[[Engine, Any], Awaitable[dict[str, Any]]]
    ends: Callable[[Any], bool] = _never
    lends: Callable[[Any], bool] = _never


def _policy(engine: Engine, asked: ask.Drained | ask.ResetMany | ask.Restore) -> DrainPolicy | None:
    if asked.then is None and asked.deadline_s is None:
        return None
    usual = engine.kernel.settings.drain
    return msgspec.convert(
        {
            "deadline_s": usual.deadline_s if asked.deadline_s is None else asked.deadline_s,
            "then": asked.then or usual.then,
            "join_s": usual.join_s,
        },
        DrainPolicy,
    )


def described(env: Environment) -> dict[str, Any]:
    """An environment as JSON."""
    capsule = env.capsule
    return {
        "env": env.name,
        "ref": str(capsule.moment),
        "generation": capsule.generation,
        "epoch": capsule.epoch,
        "phase": capsule.phase.value,
        "in_doubt": env.kernel.in_doubt(env.name),
        "actions": capsule.actions,
        "origin": str(capsule.origin),
        "parent": str(capsule.parent) if capsule.parent is not None else None,
        "policies": policies(capsule),
        "holds": held(env),
        "of_this_contract": capsule.contract == env.kernel.contract.digest,
        "sites": sites(env),
    }


def sites(env: Environment) -> dict[str, str]:
    """The private base URL of each site of an environment; empty while it is parked."""
    try:
        bindings = env.bindings
    except NotReady:
        return {}
    return {
        str(binding.address.get("host", name)): str(binding.address["base_url"])
        for name, binding in bindings.items()
        if binding.address.get("base_url")
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {"ref": str(moment), "env": moment.env, "generation": moment.generation}


async def _status(engine: Engine, asked: ask.Status) -> dict[str, Any]:
    contract = engine.kernel.contract
    answer: dict[str, Any] = {
        "contract": contract.name,
        "state": str(engine.state),
        "journal": engine.journal.id,
        "place": engine.place or None,
        "environments": [described(env) for env in engine.environments()],
        "resources": {
            name: {"adapter": resource.adapter, **msgspec.to_builtins(resource.strategy())}
            for name, resource in engine.kernel.resources.items()
        },
        "slots": _slots(engine),
        "recovered": _recovery(engine.recovered),
    }
    if asked.cost:
        answer["cost"] = msgspec.to_builtins(await engine.cost())
    return answer


def _recovery(report: RecoveryReport) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(report)
    summary = {"settled": report.settled, "recovered": report.recovered, "lost": report.lost}
    return {"clean": report.clean, "told": list(report.lines()), **msgspec.to_builtins(summary), **plain}


def _slots(engine: Engine) -> dict[str, Any]:
    slots = engine.kernel.slots
    return {
        "kind": slots.kind,
        "limit": slots.limit or None,
        "taken": list(slots.taken),
        "queue": [one.env for one in slots.queue],
    }


async def _create(engine: Engine, asked: ask.Create) -> dict[str, Any]:
    snapshots, retention = said(asked.snapshots), said(asked.retention)
    return described(await engine.create(asked.name, key=asked.key, snapshots=snapshots, retention=retention))


async def _create_many(engine: Engine, asked: ask.CreateMany) -> dict[str, Any]:
    snapshots, retention = said(asked.snapshots), said(asked.retention)
    with counting(asked.task) as counted:
        made = await engine.create_many(
            asked.names,
            key=asked.key,
            snapshots=snapshots,
            retention=retention,
            count=counted("making environments", "environments"),
        )
    return {"created": [described(env) for env in made]}


async def _describe(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    return described(await engine.find(asked.env))


async def _act(engine: Engine, asked: ask.Act) -> dict[str, Any]:
    env = await engine.find(asked.env)
    if asked.action is None:
        return _seen(await env.observe())
    try:
        return _seen(await env.act(asked.action, timeout_s=asked.timeout_s))
    finally:
        with suppress(JournalUnavailable):
            await engine.journal.flush()  # whoever asks by commands reads the journal with the next one


def _seen(seen: Seen) -> dict[str, Any]:
    return {"number": seen.number, "text": seen.text, **msgspec.to_builtins(seen.observation)}


async def _snapshot(engine: Engine, asked: ask.Drained) -> dict[str, Any]:
    return _moment(await (await engine.find(asked.env)).snapshot(drain=_policy(engine, asked), key=asked.key))


async def _reset(engine: Engine, asked: ask.Drained) -> dict[str, Any]:
    return _moment(await (await engine.find(asked.env)).reset(drain=_policy(engine, asked), key=asked.key))


async def _reset_many(engine: Engine, asked: ask.ResetMany) -> dict[str, Any]:
    with counting(asked.task) as counted:
        count = counted("resetting", "environments")
        moments = await engine.reset_many(asked.envs, drain=_policy(engine, asked), key=asked.key, count=count)
    return {"reset": [_moment(moment) for moment in moments]}


async def _restore(engine: Engine, asked: ask.Restore) -> dict[str, Any]:
    env = await engine.find(asked.env)
    with counting(asked.task) as counted:
        progress = counted(f"making {asked.ref}", "steps")
        moment = await env.restore(asked.ref, drain=_policy(engine, asked), key=asked.key, progress=progress)
    return {**_moment(moment), "made": _made(env.made) if env.made else None}


async def _fork(engine: Engine, asked: ask.Fork) -> dict[str, Any]:
    with counting(asked.task) as counted:
        born = await engine.fork(
            asked.ref,
            n=asked.n,
            names=asked.names or None,
            key=asked.key,
            progress=counted(f"making {asked.ref}", "steps"),
            count=counted(f"making children of {asked.ref}", "children"),
        )
    stands = _stands(engine, parse_ref(asked.ref))
    return {"children": [{**_born(env), "stands": stands if env.made is None else None} for env in born]}


def _born(env: Environment) -> dict[str, Any]:
    """A child as JSON. Its ``ref`` is the moment that it continues from, also where that was made in it."""
    plain = {**described(env), "made": None}
    return plain if env.made is None else {**plain, "ref": env.made.ref or plain["ref"], "made": _made(env.made)}


def _stands(engine: Engine, ref: Ref) -> str | None:
    """The generation that stands exactly at a moment that was named otherwise."""
    if ref.is_now:
        return None
    try:
        found = str(resolve(ref, engine.kernel.histories()))
    except (UnknownRef, GenerationPruned):
        return None
    return found if found != str(ref) else None


async def lent(engine: Engine, asked: ask.Fork) -> dict[str, Any]:
    """A child of a moment, for one command."""
    with counting(asked.task) as counted:
        child = await engine.lend(asked.ref, asked.lent, progress=counted(f"making {asked.ref}", "steps"))
    return _born(child)


async def _clone(engine: Engine, asked: ask.Clone) -> dict[str, Any]:
    with counting(asked.task) as counted:
        progress = counted(f"making {asked.ref}", "steps")
        env = await engine.clone(asked.ref, asked.name, key=asked.key, progress=progress)
    return {**described(env), "made": _made(env.made) if env.made else None}


async def _retire(engine: Engine, asked: ask.Retire) -> dict[str, Any]:
    env = await engine.find(asked.env)
    moment = env.ref
    await env.retire(key=asked.key)
    return _moment(moment)


async def _park(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    env = await engine.find(asked.env)
    await env.park("asked for")
    return _moment(env.ref)


async def _recover(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    return _moment(await (await engine.find(asked.env)).recover())


async def _activate(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    env = await engine.find(asked.env)
    await env.activate()
    return described(env)


async def _replay(engine: Engine, asked: ask.Replay) -> dict[str, Any]:
    with counting(asked.task) as counted, stepped(asked) as on_step:
        result = await engine.replay(
            asked.ref,
            start=asked.start,
            keep=asked.keep,
            states=asked.states,
            progress=counted(f"replaying {asked.ref}", "steps"),
            on_step=on_step,
        )
    return _compared(result)


async def _between(engine: Engine, asked: ask.Between) -> dict[str, Any]:
    found = engine.between(asked.good, asked.bad)
    return {"prefix": found.prefix, "low": found.low, "high": found.high}


async def _diff(engine: Engine, asked: ask.Diff) -> dict[str, Any]:
    found = await engine.diff(asked.before, asked.after, limit=asked.limit, look=asked.look)
    plain: dict[str, Any] = msgspec.to_builtins(found)
    for side in ("made_before", "made_after"):
        if plain[side] is not None:
            del plain[side]["by_step"]
    for name, one in found.resources.items():
        plain["resources"][name] |= {"total": one.total, "left_out": one.left_out}
    plain["page"]["equal"] = found.page.equal
    return {"equal": found.equal, **plain}


async def _blame(engine: Engine, asked: ask.Blame) -> dict[str, Any]:
    table, _, key = (asked.row or "").partition(":")
    row: tuple[str, Json] | None = (table, key) if asked.row is not None else None
    with counting(asked.task) as counted:
        found = await engine.blame(
            asked.ref,
            row=row,
            file=asked.file,
            item=asked.item,
            resource=asked.resource,
            thorough=asked.thorough,
            progress=counted(f"looking through {asked.ref}", "steps"),
        )
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {"found": found.found, **plain}


def _compared(result: RolloutResult) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return {"exact": result.exact, "first_divergence": result.first_divergence or None, **plain}


def _made(result: RolloutResult) -> dict[str, Any]:
    """How a moment was made, without its single steps."""
    plain = _compared(result)
    del plain["by_step"]
    return plain


async def _gc(engine: Engine, asked: ask.Collect) -> dict[str, Any]:
    with counting(asked.task) as counted:
        found = await engine.gc(counted("removing what nothing reaches", "things"))
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


async def _prune(engine: Engine, asked: ask.Prune) -> dict[str, Any]:
    env = await engine.find(asked.env)
    gone = await env.prune(asked.keep, only_say=asked.dry_run)
    told = [{"generation": one.generation, "nearest": str(one.nearest), "actions": one.actions} for one in gone]
    retention = asked.keep or str(engine.kernel.upkeep.retention_of(env.name))
    return {"env": env.name, "retention": retention, "dry_run": asked.dry_run, "pruned": told}


async def _mark(engine: Engine, asked: ask.Mark) -> dict[str, Any]:
    return {**_moment(await engine.mark(asked.ref, asked.text)), "mark": asked.text}


VERBS: dict[str, Verb] = {
    "status": Verb(ask.Status, _status),
    "create": Verb(ask.Create, _create),
    "create-many": Verb(ask.CreateMany, _create_many),
    "describe": Verb(ask.Named, _describe),
    "act": Verb(ask.Act, _act),
    "snapshot": Verb(ask.Drained, _snapshot),
    "reset": Verb(ask.Drained, _reset),
    "reset-many": Verb(ask.ResetMany, _reset_many),
    "restore": Verb(ask.Restore, _restore),
    "fork": Verb(ask.Fork, _fork, lends=lambda asked: bool(asked.lent)),
    "clone": Verb(ask.Clone, _clone),
    "retire": Verb(ask.Retire, _retire),
    "park": Verb(ask.Named, _park),
    "recover": Verb(ask.Named, _recover),
    "activate": Verb(ask.Named, _activate),
    "replay": Verb(ask.Replay, _replay, ends=lambda asked: not asked.keep),
    "step": Verb(ask.Step, step),
    "between": Verb(ask.Between, _between),
    "diff": Verb(ask.Diff, _diff, ends=_always),
    "blame": Verb(ask.Blame, _blame, ends=_always),
    "export": Verb(ask.Export, exported, ends=_always),
    "import": Verb(ask.Import, imported),
    "progress": Verb(ask.Watched, progress),
    "keep": Verb(ask.Keep, keep),
    "prune": Verb(ask.Prune, _prune),
    "mark": Verb(ask.Mark, _mark),
    "gc": Verb(ask.Collect, _gc),
}
