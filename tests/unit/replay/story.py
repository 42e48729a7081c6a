"""Stories: small journals told event by event, which a test then breaks in exactly one place."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.replay.told import Told

CONTRACT = """
[contract]
name = "notes"
[resources.db]
adapter = "sqlite"
base = "notes.sqlite3"
[resources.browser]
adapter = "browser"
depends_on = ["db"]
"""


class Story(Told):
    """Tells events in journal order."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: dict[str, dict[str, int]] = {}
        self.manifests: dict[tuple[str, int], dict[str, Any]] = {}
        self.leases = 0
        self.transitions = 0
        self.runs = 1
        self.versions = 0
        base = self.manifest()
        self.base = base
        self.tell("engine", "journal.created/1", journal="j1", statefork="0.1.0")
        self.tell("engine", "engine.started/1", run="r1", pid=1, statefork="0.1.0")
        self.tell("engine", "contract.registered/1", digest="c1", name="notes", text=CONTRACT)
        self.tell("engine", "recovery.finished/1", run="r1", orphans=0)
        self.tell("engine", "base.provisioned/1", contract="c1", manifest=base)

    def tell(self, stream: str, kind: str, **fields: Any) -> dict[str, Any]:
        """One event; returns it, to be broken."""
        event = {"type": kind, "at": float(len(self.events)), **copy.deepcopy(fields)}
        self.events.append((stream, event))
        return event

    def manifest(self, **keep: Any) -> dict[str, Any]:
        """A manifest with fresh versions."""
        made = {}
        for name, adapter, depends_on in (("db", "sqlite", []), ("browser", "browser", ["db"])):
            self.versions += 1
            version = f"v{self.versions}"
            data = {"path": f"resources/{name}/{version}"}
            sealed = {"journal": "j1", "resource": name, "adapter": adapter, "version": version, "data": data}
            made[name] = {"sealed": sealed, "durability": "authoritative", "depends_on": depends_on}
        return {**made, **keep}

    def control(self, env: str, kind: str, **fields: Any) -> dict[str, Any]:
        """An event of an environment's lifecycle."""
        return self.tell(f"env/{env}", kind, env=env, **fields)

    def begin(self, env: str, op: str, source: tuple[str, int] | None = None) -> dict[str, Any]:
        """Freeze."""
        self.transitions += 1
        base = self.heads.get(env, {}).get("generation", 0)
        return self.control(
            env,
            "transition.begun/1",
            transition=f"t{self.transitions}",
            op=op,
            base=base,
            source=moment(source),
        )

    def publish(
        self, env: str, op: str, source: tuple[str, int] | None = None, manifest: Any = None, **more: Any
    ) -> dict[str, Any]:
        """Move the head."""
        head = self.heads.setdefault(env, {"generation": 0, "epoch": 0, "activation": 0, "given": 0, "actions": 0})
        head["generation"] += 1
        if op != "snapshot":
            head["epoch"] = head["generation"]
        if manifest is None and op == "create":
            manifest = self.base
        elif manifest is None:
            manifest = self.manifests[source or (env, head["generation"] - 1)] if op != "snapshot" else self.manifest()
        if source is not None:
            head["actions"] = self.actions_at.get(source, 0)
        self.manifests[env, head["generation"]] = manifest
        self.actions_at[env, head["generation"]] = head["actions"]
        return self.control(
            env,
            "generation.published/1",
            transition=f"t{self.transitions}",
            op=op,
            generation=head["generation"],
            epoch=head["epoch"],
            contract="c1",
            manifest=manifest,
            source=moment(source),
            actions=head["actions"],
            **more,
        )

    @property
    def actions_at(self) -> dict[tuple[str, int], int]:
        """Length of the lineage at each generation."""
        return self.__dict__.setdefault("_actions_at", {})

    def activate(self, env: str) -> dict[str, Any]:
        """Bind in a slot."""
        head = self.heads[env]
        head["given"] = head["activation"] = max(head["given"], head["activation"]) + 1
        return self.control(
            env,
            "environment.activated/1",
            generation=head["generation"],
            activation=head["activation"],
            probed_ms={"db": 1.5, "browser": 20.25},
        )

    def create(self, env: str) -> None:
        """A new environment, serving."""
        origin = moment((env, 1))
        self.control(env, "environment.created/1", contract="c1", how="create", parent=None, origin=origin)
        self.begin(env, "create")
        self.publish(env, "create")
        self.activate(env)

    def fork(self, parent: str, child: str, *, generation: int, how: str = "fork") -> None:
        """A child of a published generation."""
        source = (parent, generation)
        inherited = self.actions_at[source] if how == "fork" else 0
        origin = moment((parent, 1) if how == "fork" else (child, 1))
        self.control(
            child,
            "environment.created/1",
            contract="c1",
            how=how,
            parent=moment(source),
            origin=origin,
            inherited_actions=inherited,
        )
        self.begin(child, how, source)
        self.publish(child, how, source)
        if how == "clone":
            self.heads[child]["actions"] = self.actions_at[child, 1] = 0
            self.events[-1][1]["actions"] = 0
        self.control(parent, "environment.forked/1", generation=generation, child=child, how=how)
        self.activate(child)

    def snapshot(self, env: str) -> None:
        """A continuing generation."""
        self.begin(env, "snapshot")
        self.drained(env)
        self.publish(env, "snapshot")

    def switch(self, env: str, op: str, source: tuple[str, int]) -> None:
        """A reset or restore."""
        self.begin(env, op, source)
        self.drained(env)
        self.publish(env, op, source)
        self.activate(env)

    def drained(self, env: str, *held: dict[str, Any]) -> dict[str, Any]:
        """Every lease ended."""
        return self.control(env, "transition.drained/1", transition=f"t{self.transitions}", held=list(held))

    def aborted(self, env: str, op: str, *, activation: int = 0, code: str = "resource_failed") -> dict[str, Any]:
        """The transition under way failed."""
        return self.control(
            env,
            "transition.aborted/1",
            transition=f"t{self.transitions}",
            op=op,
            code=code,
            reason="db: it broke",
            activation=activation,
        )

    def fail(self, env: str, op: str, source: tuple[str, int] | None = None) -> dict[str, Any]:
        """A transition that was staged beside what serves, and given up; its activation number is used up."""
        self.begin(env, op, source)
        head = self.heads[env]
        head["given"] = max(head["given"], head["activation"]) + 1
        return self.aborted(env, op, activation=head["given"])

    def park(self, env: str) -> dict[str, Any]:
        """Unbind."""
        return self.control(env, "environment.parked/1", generation=self.heads[env]["generation"])

    def marked(self, env: str, generation: int, mark: str) -> dict[str, Any]:
        """A generation gets a mark."""
        return self.control(env, "generation.marked/1", generation=generation, mark=mark)

    def chosen(self, env: str, retention: str = "", snapshots: str = "") -> dict[str, Any]:
        """Policies are chosen."""
        return self.control(env, "policy.chosen/1", snapshots=snapshots, retention=retention)

    def pruned(
        self, env: str, *gone: tuple[int, int, int], retention: str = "last 1", by: str = "command"
    ) -> dict[str, Any]:
        """Generations go: each with the nearest of the environment that stays, and how many actions lead from there."""
        pruned = [
            {"generation": number, "nearest": moment((env, nearest)), "actions": actions}
            for number, nearest, actions in gone
        ]
        return self.control(env, "generations.pruned/1", retention=retention, pruned=pruned, by=by)

    def retire(self, env: str) -> dict[str, Any]:
        """The end."""
        return self.control(env, "environment.retired/1", generation=self.heads[env]["generation"])

    def revoked(self, env: str, lease: int = 0) -> dict[str, Any]:
        """The holder of a lease (the last one, unless it is named) was cancelled."""
        return self.tell(
            f"act/{env}",
            "lease.revoked/1",
            env=env,
            generation=self.heads[env]["generation"],
            lease=lease or self.leases,
            holder="action click",
            reason="drain deadline",
        )

    def reopen(self, *orphans: tuple[str, str, str], crashed: tuple[str, ...] = ()) -> dict[str, Any]:
        """The engine is opened again: what it collects, and which environments it recovers. Returns the last word."""
        self.runs += 1
        self.leases = 0
        run = f"r{self.runs}"
        self.tell("engine", "engine.started/1", run=run, pid=self.runs, statefork="0.1.0")
        for env in crashed:
            self.begin(env, "recover", (env, self.heads[env]["generation"]))
            self.publish(env, "recover", (env, self.heads[env]["generation"]))
        for resource, kind, name in orphans:
            self.tell("engine", "orphan.collected/1", resource=resource, kind=kind, name=name)
        recovered = [moment((env, self.heads[env]["generation"])) for env in crashed]
        return self.tell("engine", "recovery.finished/1", run=run, recovered=recovered, orphans=len(orphans))

    def stop(self) -> dict[str, Any]:
        """The engine closes in good order."""
        return self.tell("engine", "engine.stopped/1", run=f"r{self.runs}")

    def begun(self, env: str, action: dict[str, Any] | None = None) -> dict[str, Any]:
        """An action's beginning."""
        head = self.heads[env]
        head["actions"] += 1
        self.leases += 1
        return self.tell(
            f"act/{env}",
            "action.begun/1",
            env=env,
            **self.identity(env),
            lease=self.leases,
            number=head["actions"],
            action=action or {"type": "click", "selector": f"#b{head['actions']}"},
        )

    def ended(self, env: str, *, outcome: str = "ok", seen: str = "") -> dict[str, Any]:
        """Its end."""
        head = self.heads[env]
        observation = {"digest": seen or f"seen-{head['actions']}", "url": f"http://notes.example/{head['actions']}"}
        return self.tell(
            f"act/{env}",
            "action.ended/1",
            env=env,
            **self.identity(env),
            lease=self.leases,
            number=head["actions"],
            outcome=outcome,
            observation=observation if outcome == "ok" else None,
        )

    def act(self, env: str, action: dict[str, Any] | None = None) -> None:
        """A whole action."""
        self.begun(env, action)
        self.ended(env)

    def given(self, env: str, url: str = "http://notes.example/poll") -> dict[str, Any]:
        """A mutating request that no action caused."""
        self.leases += 1
        identity = self.identity(env)
        del identity["activation"]
        after = self.heads[env]["actions"]
        return self.tell(
            f"act/{env}",
            "input.recorded/1",
            env=env,
            **identity,
            lease=self.leases,
            after_action=after,
            method="POST",
            url=url,
            status=200,
        )

    def evaluated(self, env: str) -> dict[str, Any]:
        """An evaluator's verdict."""
        self.leases += 1
        identity = self.identity(env)
        del identity["activation"]
        after = self.heads[env]["actions"]
        return self.tell(
            f"act/{env}",
            "evaluation.recorded/1",
            env=env,
            **identity,
            lease=self.leases,
            name="bought",
            score=1.0,
            after_action=after,
        )

    def refused(self, env: str, *, epoch: int, detail: str, status: int = 409) -> dict[str, Any]:
        """A request that was turned away."""
        return self.tell(
            f"act/{env}",
            "request.refused/1",
            env=env,
            epoch=epoch,
            activation=1,
            status=status,
            code="stale_generation",
            method="GET",
            url="http://notes.example/",
            detail=detail,
        )

    def identity(self, env: str) -> dict[str, int]:
        """Generation, epoch and activation now."""
        head = self.heads[env]
        return {key: head[key] for key in ("generation", "epoch", "activation")}


def moment(named: tuple[str, int] | None) -> dict[str, Any] | None:
    """A moment as events carry it."""
    return None if named is None else {"env": named[0], "generation": named[1]}
