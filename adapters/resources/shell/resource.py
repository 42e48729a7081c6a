"""A terminal behind the resource port (see engine.ports.Resource and Actor): a tree, and commands that are run in it.

Only the tree is kept. No process lives from one action to the next, and what a command leaves in ``/tmp`` is gone with
it, so a version holds everything that a later command can find.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from statefork.adapters.resources.common import failures_told, in_thread
from statefork.adapters.resources.process import keeper
from statefork.adapters.resources.process.accounts import account_of, owner_of
from statefork.adapters.resources.process.cgroups import Leaf, parent_of_leaves
from statefork.adapters.resources.process.given import GivenTrees
from statefork.adapters.resources.process.networks import why_none
from statefork.adapters.resources.process.options import OWN_USER, inherited
from statefork.adapters.resources.process.standing import end_leftovers, end_standing
from statefork.adapters.resources.process.starting import leaf_name
from statefork.adapters.resources.shell.actions import Run, parse_run
from statefork.adapters.resources.shell.commands import Command, Ended, run
from statefork.adapters.resources.shell.options import Options
from statefork.engine.errors import ActionFailed, ResourceFailed
from statefork.engine.ports import Services, Strategy
from statefork.engine.runtimes import marks
from statefork.journal.values import Binding, Json, Observation

_LISTED_MAX = 1000
_OWN_HOME = f"{keeper.HOMES}/{keeper.HOME}"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the engine's may lead to closed places
_CWD_TOLD = 100
_TOLD_CHARS_MAX = 16_384  # of each output in the journal itself


class ShellResource(GivenTrees):
    """One terminal of one contract."""

    adapter = "shell"

    def __init__(self, name: str, options: Options, services: Services) -> None:
        # One with a home of its own is brought there (see process.keeper), and finds no way to anything else.
        super().__init__(name, options, services, user=options.account(), by_path=options.account() != OWN_USER)
        self._shell = options
        self._services = services
        self._turns: dict[str, anyio.Lock] = {}  # by branch: two commands at once would not be told apart

    def strategy(self) -> Strategy:
        """How its files are branched, and who runs the commands."""
        trees = super().strategy()
        if trees.name == "none":
            return trees
        who = {"": "the engine's user", OWN_USER: "a user of each environment's own"}.get(self._user, self._user)
        temporary = "/home and an empty /tmp" if self._user == OWN_USER else "an empty TMPDIR"
        return msgspec.structs.replace(trees, reason=f"commands as {who}, with {temporary}; {trees.reason}")

    async def start(self) -> None:
        """Probe, and end what a killed engine left. Idempotent. Raises ContractError, ResourceFailed."""
        await in_thread(end_leftovers, self._ledger.root / "branches")
        await super().start()
        await in_thread(self._check_rights)

    def _check_rights(self) -> None:
        account_of(self.name, self._user)
        if self._shell.network == "own" and (why := why_none()):
            raise ResourceFailed(
                f"{self.name}: no network of its own can be had here: {why}",
                hint="Run the engine as root, or take 'network' out of the contract",
                resource=self.name,
            )

    def _drop_branch(self, branch: str) -> None:
        end_standing(self._ledger.workplace(branch))
        self._turns.pop(branch, None)
        super()._drop_branch(branch)

    # -- acting (see engine.ports.Actor) ------------------------------------------------------------------------

    def check(self, action: Mapping[str, Json]) -> None:
        """Raises InvalidAction unless it is a command."""
        parse_run(action)

    async def act(self, binding: Binding, action: Mapping[str, Json]) -> Observation:
        """Run the command. Raises ActionFailed where it takes too long, or has nowhere to run."""
        return await self._run(binding, parse_run(action))

    async def _run(self, binding: Binding, asked: Run) -> Observation:
        command = await in_thread(self._command, binding, asked)
        ended: Ended | None = None
        async with self._turns.setdefault(binding.branch, anyio.Lock()):
            with failures_told(self.name, "running a command", env=binding.identity.env):
                with anyio.move_on_after(asked.timeout_ms / 1000):
                    ended = await run(command)
        if ended is None:
            raise ActionFailed(
                f"{command.words[0]} did not end within {asked.timeout_ms} ms, and was killed with all that it started",
                hint="Give it a longer timeout_ms, or let it end by itself",
                action="run",
            )
        return await in_thread(self._seen, ended)

    def _command(self, binding: Binding, asked: Run) -> Command:
        tree = Path(str(binding.address["path"]))
        account = owner_of(tree) if self._user else None
        workplace = self._ledger.workplace(binding.branch)
        parent, _ = parent_of_leaves()
        leaf = None
        if parent is not None:
            leaf = Leaf(parent / leaf_name(self._services, self.name, binding.branch))
        # With mounts of its own, paths are the same in all environments, and in what is replayed.
        alone = account is not None and account.alone
        home, temporary = (_OWN_HOME, "/tmp") if alone else (str(tree), str(workplace / "run"))
        own = {"HOME": home, "TMPDIR": temporary} | ({"PATH": _SYSTEM_PATH} if alone else {})
        return Command(
            words=asked.words(),
            stdin=asked.input(),
            environment={**inherited(), **own, **self._shell.environment, **asked.environment},
            # A leaf holds all of it together; by these a later engine finds the rest, and they tell where its state is.
            marks={} if leaf is not None else self._marks(binding),
            tree=tree,
            directory=f"{home}/{self._below(tree, asked.cwd)}",
            workplace=workplace,
            output_bytes_max=self._shell.output_bytes_max,
            leaf=leaf,
            account=account,
            processes_max=self._shell.processes_max,
            alone_in_network=self._shell.network == "own",
        )

    def _marks(self, binding: Binding) -> dict[str, str]:
        return marks(self._services.state, self._services.journal, f"{self.name}-{binding.branch}")

    def _below(self, tree: Path, cwd: str) -> Path:
        """A directory in the tree, for ``..`` leads to no sibling; what a link leads to is looked up by the command."""
        place = Path(os.path.normpath(tree / cwd))
        if not place.is_relative_to(tree):
            raise ActionFailed(f"cwd {cwd[:_CWD_TOLD]!r} leads out of the tree", action="run")
        if not _may_be_there(tree, place.relative_to(tree).parts):
            raise ActionFailed(f"there is no directory {cwd[:_CWD_TOLD]!r}", action="run")
        return place.relative_to(tree)

    def _seen(self, ended: Ended) -> Observation:
        put = self._services.blobs.put
        parts = {"stdout": put(ended.stdout), "stderr": put(ended.stderr)}
        covered = [ended.status, parts["stdout"], parts["stderr"]]
        text = ended.stdout + ended.stderr + (f"[status {ended.status}]\n".encode() if ended.status else b"")
        said_by = {"stdout": ended.stdout, "stderr": ended.stderr}
        told = {name: said.decode(errors="replace") for name, said in said_by.items()}
        value: dict[str, Json] = {"status": ended.status}
        value |= {name: said[:_TOLD_CHARS_MAX] for name, said in told.items()}
        if shortened := [name for name, said in told.items() if len(said) > _TOLD_CHARS_MAX]:
            value["shortened"] = shortened  # the parts have them whole
        return Observation(
            digest=hashlib.sha256(msgspec.json.encode(covered)).hexdigest(),
            title=f"status {ended.status}",
            snapshot=put(text.decode(errors="replace").encode()),
            parts=parts,
            value=value | ({"truncated": True} if ended.truncated else {}),  # nobody has the rest
        )

    async def observe(self, binding: Binding) -> Observation:
        """What lies at the top of the tree: names, and a slash after those of directories."""
        return await in_thread(self._listed, binding)

    def _listed(self, binding: Binding) -> Observation:
        with failures_told(self.name, "listing the tree", env=binding.identity.env):
            with os.scandir(str(binding.address["path"])) as entries:
                names = sorted(f"{one.name}/" if one.is_dir(follow_symlinks=False) else one.name for one in entries)
        more = [f"and {len(names) - _LISTED_MAX} more"] if len(names) > _LISTED_MAX else []
        text = "\n".join((*names[:_LISTED_MAX], *more)).encode(errors="replace")
        return Observation(
            digest=hashlib.sha256(text).hexdigest(), title="files", snapshot=self._services.blobs.put(text)
        )

    @asynccontextmanager
    async def raw(self, binding: Binding) -> AsyncIterator[Path]:
        """The tree's path."""
        yield Path(str(binding.address["path"]))


def _may_be_there(tree: Path, parts: tuple[str, ...]) -> bool:
    """Whether it is a directory; of what lies behind a link nothing is told."""
    at = os.open(tree, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            try:
                below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            except OSError:
                return False
            os.close(at)
            at = below
            mode = os.fstat(at).st_mode
            if stat.S_ISLNK(mode):
                return True
            if not stat.S_ISDIR(mode):
                return False
        return True
    finally:
        os.close(at)
