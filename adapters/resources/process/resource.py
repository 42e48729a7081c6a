"""A private backend behind the resource port (see engine.ports.Resource): a process over a tree, for each environment.

The tree is branched and sealed as file trees are. The process is what makes it more: it is started by ``bind``, held
still (or ended, and started again) while the tree is sealed, and ended with everything it has started by ``unbind``.

What starting writes is no content: an environment that was bound and not used is what it was. So how the tree looks
once the command serves counts as untouched, as long as it was untouched before.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from statefork.adapters.resources.common import in_thread
from statefork.adapters.resources.files.overlay import OverlayTrees
from statefork.adapters.resources.process.given import GivenTrees
from statefork.adapters.resources.process.options import Options
from statefork.adapters.resources.process.ports import HOST, PORTS, is_taken
from statefork.adapters.resources.process.readiness import not_ready
from statefork.adapters.resources.process.running import Running
from statefork.adapters.resources.process.standing import end_leftovers, end_standing
from statefork.adapters.resources.process.starting import Starting, can_start
from statefork.adapters.resources.process.trees import LivingOverlays
from statefork.adapters.resources.records import BranchRecord
from statefork.engine.errors import NotReady, ResourceFailed, RuntimeDied
from statefork.engine.ports import Needs, Route, Services, Strategy
from statefork.journal.values import Binding, Branch, Identity, Sealed

STRATEGY = "private"
_PROBE_EVERY_S = 0.02
_SETTLES_MAX = 10


class _Bound:
    """A branch's process, and for whom it runs."""

    def __init__(self, running: Running, identity: Identity) -> None:
        self.running = running
        self.identity = identity
        self.proved = False  # it has just served, and need not be asked again
        self.resting = False  # it was ended for a cut, and does not serve again yet
        self.untouched = False  # its tree counted as untouched before it was started, or ended for a cut


class ProcessResource(GivenTrees):
    """One command of one contract.

    ``instead`` says why it stands in for a finer adapter, if it does, and ``better`` what that adapter needs.
    """

    adapter = "process"

    def __init__(self, name: str, options: Options, services: Services, instead: str = "", better: str = "") -> None:
        super().__init__(name, options, services, user=options.user)
        self.overlays = OverlayTrees if options.cut == "restart" else LivingOverlays
        self.instead = instead
        self._better = better
        self._running = options
        self._services = services
        self._starting = Starting(name, options, services)
        self._bound: dict[str, _Bound] = {}  # by branch
        self._like: dict[str, str] = {}  # by branch: a mark that counts as untouched
        self._sites: dict[str, Any] = {}  # by environment

    # -- what it is -------------------------------------------------------------------------------------------

    def strategy(self) -> Strategy:
        """That it is private, how its files are branched, and how it is held still."""
        trees = super().strategy()
        if trees.name == "none":
            return trees
        why = f"{self.instead}: " if self.instead else ""
        reason = f"{why}a process for each environment; {self._starting.held_still()}; files by {trees.name}"
        return Strategy(name=STRATEGY, reason=f"{reason} ({trees.reason})", faster=self._better or trees.faster)

    def process_ids(self) -> tuple[int, ...]:
        """Those of all environments (see engine.ports.Resident)."""
        return tuple(pid for bound in list(self._bound.values()) for pid in bound.running.all_pids())

    def died(self, binding: Binding) -> str:
        """How the command ended (see engine.ports.Mortal)."""
        bound = self._bound.get(binding.branch)
        why = bound.running.ended() if bound is not None and bound.identity == binding.identity else ""
        return f"{self.name}: {why}" if why else ""

    async def start(self) -> None:
        """Probe, and end what a killed engine left. Idempotent. Raises ContractError, ResourceFailed."""
        await in_thread(end_leftovers, self._ledger.root / "branches")
        await super().start()
        await in_thread(can_start, self.name, self._running)

    async def stop(self) -> None:
        """End every process; their trees stay. Idempotent."""
        for site in [self._sites.pop(env) for env in list(self._sites)]:
            await site.close()
        for branch in list(self._bound):
            await self._end(branch)
        await super().stop()

    def _sealed_handle(self, version: str) -> Sealed:
        """What is said of it in the manifest."""
        data = {"strategy": STRATEGY} | ({"instead": self.instead} if self.instead else {})
        return msgspec.structs.replace(super()._sealed_handle(version), data=data)

    # -- bindings ---------------------------------------------------------------------------------------------

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """Start the command and wait until it serves. Raises ResourceFailed, with the end of what it said.

        The address has the tree's ``path``, the ``port``, and, for a site of the world, what the gateway needs.
        """
        path = await in_thread(self._ready, branch)
        with anyio.CancelScope(shield=True):
            await self._end(branch.id)
        try:
            bound = self._bound[branch.id] = await self._started(branch, identity, needs, path)
            site = await self._door(identity)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end(branch.id)
            raise
        if self._services.gateway is not None:
            self._services.gateway.point(self.name, identity, bound.running.launch.port, bound.running.network)
        return Binding(
            journal=branch.journal,
            resource=self.name,
            adapter=self.adapter,
            branch=branch.id,
            identity=identity,
            address={"path": str(path), "port": bound.running.launch.port, **site},
        )

    async def _started(self, branch: Branch, identity: Identity, needs: Needs, path: Path) -> _Bound:
        """Again at another port, where somebody else was quicker to take the first."""
        untouched = await in_thread(self._in_branch, "reading the tree's stamps", branch, self._is_untouched)
        for left in reversed(range(self._starting.tries)):
            launch = await in_thread(self._starting.launch, branch, needs, path, self._ledger.workplace(branch.id))
            found = _Bound(Running(launch), identity)
            found.untouched = untouched
            try:
                await in_thread(self._starting.start, found.running)
                await self._serve(branch, found)
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await in_thread(found.running.stop)
                PORTS.give_back(launch.port)
                if not (isinstance(error, ResourceFailed) and left and is_taken(launch.port)):
                    raise
            else:
                found.proved = True
                return found
        raise AssertionError("the last try ends the loop")

    async def _serve(self, branch: Branch, bound: _Bound) -> None:
        """Wait until it serves and has come to rest."""
        await self._until_it_serves(bound.running)
        if bound.untouched:
            await self._settle(branch)
        else:
            self._like.pop(branch.id, None)

    async def _until_it_serves(self, running: Running) -> None:
        why = "it was not asked"
        with anyio.move_on_after(self._running.ready_s):
            while not (ended := running.ended()):
                why = await in_thread(self._why_not, running)
                if not why:
                    return
                await anyio.sleep(_PROBE_EVERY_S)
            raise running.failed(f"did not come up: {ended}")
        raise running.failed(f"did not serve within ready_s = {self._running.ready_s:g} ({why})")

    def _why_not(self, running: Running) -> str:
        ready, launch = self._running.ready_of(), running.launch
        assert ready is not None, "options are checked"
        host, network = self._running.host, running.network
        return not_ready(ready, host=host, port=launch.port, log=running.log, pids=running.pids, network=network)

    async def _settle(self, branch: Branch) -> None:
        """What the tree looks like once it is left alone counts as untouched."""
        mark = await in_thread(self._in_branch, "reading the tree's stamps", branch, self._tree_mark)
        for _ in range(_SETTLES_MAX if self._running.settle_s else 0):
            await anyio.sleep(self._running.settle_s)
            before, mark = mark, await in_thread(self._in_branch, "reading the stamps", branch, self._tree_mark)
            if mark == before:
                break
        self._like[branch.id] = mark

    async def _door(self, identity: Identity) -> dict[str, Any]:
        """What an address has of a site of the world; its private base URL is opened here."""
        options, gateway = self._running, self._services.gateway
        if not options.host:
            return {}
        route = Route(host=options.host, upstream_host=HOST, upstream_port=0, private=self.name)
        if gateway is not None and identity.env not in self._sites:
            self._sites[identity.env] = await gateway.open_site(identity.env, route)
        site = self._sites.get(identity.env)
        return {
            "host": route.host,
            "upstream_host": route.upstream_host,
            "upstream_port": route.upstream_port,
            "private": route.private,
            "base_url": site.base_url if site is not None else "",
        }

    async def probe(self, binding: Binding) -> None:
        """The tree can be read, the command runs and serves. Raises NotReady."""
        await super().probe(binding)
        bound = self._bound.get(binding.branch)
        if bound is None or bound.identity != binding.identity:
            raise NotReady(f"{self.name}: no process runs for {binding.identity}", resource=self.name)
        why = bound.running.ended() or ("" if bound.proved else await in_thread(self._why_not, bound.running))
        if why:
            raise NotReady(f"{self.name} of {binding.identity} does not serve: {why}", resource=self.name)
        bound.proved = False

    async def unbind(self, binding: Binding) -> None:
        """End the command with all it has started, and join it. Idempotent."""
        bound = self._bound.get(binding.branch)
        if bound is None or bound.identity != binding.identity:
            return
        site = self._sites.get(binding.identity.env)
        if site is not None:
            await site.end(binding.identity)
        with anyio.CancelScope(shield=True):
            await self._end(binding.branch)

    async def forget(self, env: str) -> None:
        """Close the base URL of an environment that has ended. Idempotent."""
        site = self._sites.pop(env, None)
        if site is not None:
            await site.close()

    async def _end(self, branch: str) -> None:
        bound = self._bound.get(branch)
        if bound is not None:
            if self._services.gateway is not None:
                self._services.gateway.unpoint(self.name, bound.identity, bound.running.launch.port)
            await in_thread(self._end_process, branch)

    def _end_process(self, branch: str) -> None:
        bound = self._bound.pop(branch, None)
        if bound is not None:
            bound.running.stop()
            PORTS.give_back(bound.running.launch.port)
        else:
            end_standing(self._ledger.workplace(branch))

    def _drop_branch(self, branch: str) -> None:
        self._end_process(branch)
        self._like.pop(branch, None)
        super()._drop_branch(branch)

    # -- the cut ----------------------------------------------------------------------------------------------

    async def quiesce(self, branch: Branch) -> None:
        """Hold the command still, or end it in order. Raises ResourceBusy, RuntimeDied."""
        bound = self._bound.get(branch.id)
        if bound is not None:
            if ended := bound.running.ended():
                raise RuntimeDied(f"{self.name} of {branch.env}: {ended}", resource=self.name, env=branch.env)
            await in_thread(self._pause if self._running.cut == "restart" else self._freeze, branch, bound)
        await super().quiesce(branch)

    def _pause(self, branch: Branch, bound: _Bound) -> None:
        if not bound.resting:
            bound.untouched = self._in_branch("reading the tree's stamps", branch, self._is_untouched)
        bound.resting = True
        bound.running.pause(self._running.stop_s)
        if bound.untouched:  # nor is what ending writes
            self._like[branch.id] = self._in_branch("reading the tree's stamps", branch, self._tree_mark)

    def _freeze(self, branch: Branch, bound: _Bound) -> None:
        bound.running.freeze()
        touch_mapped(bound.running.pids(), self._trees().tree(branch.id))

    async def thaw(self, branch: Branch) -> None:
        """It goes on, at the same port. Raises ResourceFailed where it does not come up again."""
        await super().thaw(branch)
        bound = self._bound.get(branch.id)
        if bound is None:
            return
        if not bound.resting:
            await in_thread(bound.running.thaw)
            return
        if bound.running.paused:
            bound.untouched = await in_thread(self._in_branch, "reading the stamps", branch, self._is_untouched)
            await in_thread(self._starting.start, bound.running)
        await self._serve(branch, bound)
        bound.resting = False

    async def write_mark(self, branch: Branch) -> str:
        """Made of what the kernel keeps of each file: inode, size, times."""
        return await in_thread(self._in_branch, "reading the tree's stamps", branch, self._mark)

    def _tree_mark(self, record: BranchRecord) -> str:
        return self._trees().mark(record)

    def _mark(self, record: BranchRecord) -> str:
        mark = self._tree_mark(record)
        return record.mark if mark == self._like.get(record.handle.id) else mark

    def _is_untouched(self, record: BranchRecord) -> bool:
        return bool(record.mark) and self._mark(record) == record.mark

    def _seal(self, record: BranchRecord) -> Sealed:
        if self._is_untouched(record) and self._ledger.find_sealed(record.over.version) is not None:
            return record.over
        sealed = self._seal_anew(record)
        self._like.pop(record.handle.id, None)
        return sealed


def touch_mapped(pids: Iterable[int], tree: Path) -> None:
    """Give a new change time to each file of a tree that a process has mapped for writing.

    The kernel stamps a mapped file when a page of it is first written, and not again while that page is dirty: such a
    file counts as written at every cut.
    """
    below = f"{tree}/"
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines()
            for line in lines:
                _, modes, *_, path = line.split(None, 5) if line.count(" ") >= 5 else ("", "", "")
                if modes.startswith("rw") and modes.endswith("s") and path.startswith(below):
                    restamp(path)


def restamp(path: str) -> None:
    """A new change time for a file that is there; never for what a link leads to: its owner may be nobody's friend."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(file, stat.S_IMODE(os.fstat(file).st_mode))
        finally:
            os.close(file)
