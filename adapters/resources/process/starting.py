"""From a contract's entry to one start of its command: what it is told, as whom, where, at which port."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statefork.adapters.resources.common import failures_told
from statefork.adapters.resources.ledger import readable
from statefork.adapters.resources.process.accounts import account_of, owner_of
from statefork.adapters.resources.process.cgroups import Leaf, parent_of_leaves
from statefork.adapters.resources.process.networks import why_none
from statefork.adapters.resources.process.options import OWN_USER, Options, filled, inherited, variables
from statefork.adapters.resources.process.ports import HOST, PORTS
from statefork.adapters.resources.process.running import Launch, Running
from statefork.engine.errors import ContractError, ResourceFailed
from statefork.engine.ports import Needs, Services
from statefork.engine.runtimes import marks
from statefork.journal.values import Branch

_TRIES = 3


class Starting:
    """How the command of one resource is started."""

    tries = _TRIES

    def __init__(self, name: str, options: Options, services: Services) -> None:
        self._name = name
        self._options = options
        self._services = services

    def held_still(self) -> str:
        """In words, how it is stopped for a cut, and ended."""
        if self._options.cut == "restart":
            return "ended in order for each snapshot, and started again"
        parent, why = parent_of_leaves()
        return "frozen in a cgroup leaf of its own" if parent is not None else f"held still by SIGSTOP, since {why}"

    def launch(self, branch: Branch, needs: Needs, tree: Path, workplace: Path) -> Launch:
        """What is to be run for a branch; its port is taken. Raises ResourceFailed, ContractError."""
        options = self._options
        with failures_told(self._name, "finding a free port"):
            port = PORTS.take()
        places = self._places(branch, needs, tree, workplace, port)
        environment = {**inherited(), **variables(places)}
        environment |= {name: filled(text, places) for name, text in options.environment.items()}
        parent, _ = parent_of_leaves()
        return Launch(
            resource=self._name,
            env=branch.env,
            words=tuple(filled(word, places) for word in options.words()),
            environment=environment,
            marks=marks(self._services.state, self._services.journal, f"{self._name}-{branch.id}"),
            directory=(self._services.base_dir / options.path).resolve() if options.path else tree,
            workplace=workplace,
            port=port,
            leaf=Leaf(parent / leaf_name(self._services, self._name, branch.id)) if parent is not None else None,
            account=owner_of(tree) if options.user else None,
            processes_max=options.processes_max,
            alone_in_network=options.network == "own",
        )

    def _places(self, branch: Branch, needs: Needs, tree: Path, workplace: Path, port: int) -> Mapping[str, Any]:
        found: dict[str, Any] = {
            f"{name}.{key}": value for name, binding in needs.bindings.items() for key, value in binding.address.items()
        }
        missing = sorted(place for place in self._options.places() if "." in place and place not in found)
        if missing:
            key = f"resources.{self._name}.command"
            raise ContractError(
                f"{key}: {{{missing[0]}}} is nothing that a resource in depends_on tells",
                hint=f"There are: {', '.join(sorted(found)) or 'none'}",
                key=key,
            )
        own = {"data": tree, "run": workplace / "run", "host": HOST, "port": port, "env": branch.env}
        return found | own | {"python": sys.executable}

    def start(self, running: Running) -> None:
        """Blocks until it is on its way."""
        with failures_told(self._name, "starting the command", env=running.launch.env):
            running.start()


def leaf_name(services: Services, resource: str, branch: str) -> str:
    """Of the group in which the processes of one branch are; no other state directory's branch has the same."""
    whose = f"{services.state.resolve()} {services.journal} {resource}"
    return f"statefork-{hashlib.sha256(whose.encode()).hexdigest()[:12]}-{readable(branch)}"


def can_start(name: str, options: Options) -> None:
    """Raise ContractError or ResourceFailed where what the contract asks for can't be had here."""
    account_of(name, options.user)
    if options.network == "own" and (why := why_none()):
        raise ResourceFailed(
            f"{name}: no network of its own can be had here: {why}",
            hint="Run the engine as root, or take 'network' out of the contract",
            resource=name,
        )
    if options.processes_max and options.user != OWN_USER and not _leaves_limit(name):
        key = f"resources.{name}.processes_max"
        hint = 'Give it user = "own" (as root), or take the limit out'
        raise ContractError(f"{key}: nothing here holds that limit", hint=hint, key=key)


def _leaves_limit(name: str) -> bool:
    parent, _ = parent_of_leaves()
    if parent is None:
        return False
    trial = Leaf(parent / f"statefork-limit-{readable(name)}")
    try:
        with contextlib.suppress(OSError):
            trial.make()
            return trial.limits_processes
        return False
    finally:
        trial.remove()
