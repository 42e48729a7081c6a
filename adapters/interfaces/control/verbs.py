"""What the control door can do: each verb with its request and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from statefork.adapters.interfaces.control import protocol as ask
from statefork.adapters.interfaces.environment import Environment
from statefork.adapters.interfaces.python import Engine
from statefork.adapters.interfaces.views import Seen
from statefork.engine.errors import NotReady
from statefork.engine.recovery import RecoveryReport
from statefork.engine.settings import DrainPolicy
from statefork.journal.values import Moment


class Verb(NamedTuple):
    """One thing to ask for."""

    request: type[ask.Request]
    answer: Callable[[Engine, Any], Awaitable[dict[str, Any]]]


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
        "actions": capsule.actions,
        "origin": str(capsule.origin),
        "parent": str(capsule.parent) if capsule.parent is not None else None,
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
    return {"clean": report.clean, **msgspec.to_builtins(summary), **plain}


def _slots(engine: Engine) -> dict[str, Any]:
    slots = engine.kernel.slots
    return {
        "kind": slots.kind,
        "limit": slots.limit or None,
        "taken": list(slots.taken),
        "queue": [one.env for one in slots.queue],
    }


async def _create(engine: Engine, asked: ask.Create) -> dict[str, Any]:
    return described(await engine.create(asked.name, key=asked.key))


async def _create_many(engine: Engine, asked: ask.CreateMany) -> dict[str, Any]:
    return {"created": [described(env) for env in await engine.create_many(asked.names, key=asked.key)]}


async def _describe(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    return described(engine.environment(asked.env))


async def _act(engine: Engine, asked: ask.Act) -> dict[str, Any]:
    env = engine.environment(asked.env)
    if asked.action is None:
        return _seen(await env.observe())
    return _seen(await env.act(asked.action, timeout_s=asked.timeout_s))


def _seen(seen: Seen) -> dict[str, Any]:
    return {"number": seen.number, "text": seen.text, **msgspec.to_builtins(seen.observation)}


async def _snapshot(engine: Engine, asked: ask.Drained) -> dict[str, Any]:
    return _moment(await engine.environment(asked.env).snapshot(drain=_policy(engine, asked), key=asked.key))


async def _reset(engine: Engine, asked: ask.Drained) -> dict[str, Any]:
    return _moment(await engine.environment(asked.env).reset(drain=_policy(engine, asked), key=asked.key))


async def _reset_many(engine: Engine, asked: ask.ResetMany) -> dict[str, Any]:
    moments = await engine.reset_many(asked.envs, drain=_policy(engine, asked), key=asked.key)
    return {"reset": [_moment(moment) for moment in moments]}


async def _restore(engine: Engine, asked: ask.Restore) -> dict[str, Any]:
    env = engine.environment(asked.env)
    return _moment(await env.restore(asked.ref, drain=_policy(engine, asked), key=asked.key))


async def _fork(engine: Engine, asked: ask.Fork) -> dict[str, Any]:
    born = await engine.fork(asked.ref, n=asked.n, names=asked.names or None, key=asked.key)
    return {"children": [described(env) for env in born]}


async def _clone(engine: Engine, asked: ask.Clone) -> dict[str, Any]:
    return described(await engine.clone(asked.ref, asked.name, key=asked.key))


async def _retire(engine: Engine, asked: ask.Retire) -> dict[str, Any]:
    env = engine.environment(asked.env)
    moment = env.ref
    await env.retire(key=asked.key)
    return _moment(moment)


async def _park(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    env = engine.environment(asked.env)
    await env.park("asked for")
    return _moment(env.ref)


async def _recover(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    return _moment(await engine.environment(asked.env).recover())


async def _activate(engine: Engine, asked: ask.Named) -> dict[str, Any]:
    env = engine.environment(asked.env)
    await env.activate()
    return described(env)


async def _replay(engine: Engine, asked: ask.Replay) -> dict[str, Any]:
    result = await engine.replay(asked.env, keep=asked.keep)
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return {"exact": result.exact, "first_divergence": result.first_divergence or None, **plain}


async def _gc(engine: Engine, asked: ask.Nothing) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(await engine.gc())
    return plain


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
    "fork": Verb(ask.Fork, _fork),
    "clone": Verb(ask.Clone, _clone),
    "retire": Verb(ask.Retire, _retire),
    "park": Verb(ask.Named, _park),
    "recover": Verb(ask.Named, _recover),
    "activate": Verb(ask.Named, _activate),
    "replay": Verb(ask.Replay, _replay),
    "gc": Verb(ask.Nothing, _gc),
}
