"""Namespaces on a Valkey server behind the resource port (see engine.ports.Resource)."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from statefork.adapters.resources.common import failures_told, in_thread, pulse
from statefork.adapters.resources.ledger import Ledger, sync_file_system
from statefork.adapters.resources.onefile import OneFileResource
from statefork.adapters.resources.records import BranchRecord, SealedRecord
from statefork.adapters.resources.reflink import Pulse, no_pulse
from statefork.adapters.resources.valkey import dumps
from statefork.adapters.resources.valkey.asking import Admin, batches, connected, told, url_of
from statefork.adapters.resources.valkey.clients import holders
from statefork.adapters.resources.valkey.diffing import changes_between
from statefork.adapters.resources.valkey.naming import COMMANDS, NO_COMMANDS, Names
from statefork.adapters.resources.valkey.options import Options
from statefork.adapters.resources.valkey.server import ValkeyServer, find_program
from statefork.adapters.resources.valkey.watching import Watching
from statefork.engine.errors import MissingDependency, NotReady, ResourceBusy, ResourceFailed, StateforkError
from statefork.engine.ports import Change, Needs, Owner, Services, Strategy, Usage
from statefork.journal.values import Binding, Branch, Identity, Sealed

ADAPTER = "valkey"
_UNKEPT = "contents are not kept"


class ValkeyResource(OneFileResource):
    """One namespace of one contract, on a server that all its environments share."""

    adapter = ADAPTER
    file_name = dumps.FILE_NAME

    def __init__(self, name: str, options: Options, services: Services, server: ValkeyServer, *, kept: bool) -> None:
        super().__init__(name, Ledger(services.state, name, ADAPTER, services.journal), services.base_dir)
        self.options = options
        self.server = server
        self.kept = kept
        self._names = Names(services.journal, name)
        self._lock = threading.RLock()
        self._admin: Admin | None = None
        self._watching: Watching | None = None
        self._secrets: dict[str, tuple[Identity, str]] = {}  # by token, of those that are bound
        self._held: set[str] = set()  # tokens whose users may do nothing, until thaw

    # -- life -------------------------------------------------------------------------------------------------

    def strategy(self) -> Strategy:
        """Kept or emptied, and by which program."""
        try:
            program = find_program(self.options.server)
        except MissingDependency as missing:
            return Strategy(name="none", reason=missing.message, faster=missing.hint)
        if self.kept:
            what = "sealed key by key (DUMP), branched by RESTORE into a namespace of its own"
            return Strategy(name="kept namespaces", reason=f"{what}; one {program} for all environments")
        return Strategy(
            name="emptied namespaces",
            reason=f"every epoch begins with an empty namespace; one {program} for all environments",
        )

    async def start(self) -> None:
        """Start the server. Idempotent."""
        await in_thread(self._start)

    def _start(self) -> None:
        if self._started():
            self.server.wait()
            return
        with self._lock:
            if self._started():
                return
            with failures_told(self.name, "starting the server"):
                self._admin = self.server.acquire()
            self.server.came.append(self._restore_users)
            if self.kept:
                self._watching = Watching(self.name, self._admin, self._names.all_keys)

    def _started(self) -> bool:
        return self._admin is not None

    async def stop(self) -> None:
        """Stop the server, if no other resource object uses it. Idempotent."""
        await in_thread(self._stop)
        await in_thread(self._sums.stop)

    def _stop(self) -> None:
        with self._lock:
            admin, self._admin = self._admin, None
            watching, self._watching = self._watching, None
        if admin is None:
            return
        self.server.came.remove(self._restore_users)
        if watching is not None:
            watching.stop()
        admin.close()
        self.server.release()

    def process_ids(self) -> tuple[int, ...]:
        """The server's process (see engine.ports.Resident)."""
        return self.server.process_ids()

    def died(self, binding: Binding) -> str:
        """A server that was started again has everything; one that was given up has nothing (engine.ports.Mortal)."""
        return self.server.given_up

    def _restore_users(self) -> None:
        """The server was started again: it knows its keys, and none of the users."""
        with self._lock:
            admin, bound, held = self._admin, dict(self._secrets), set(self._held)
        if admin is None:
            return
        with suppress(StateforkError), told(self.name, "restoring users"):
            for token, (_, secret) in bound.items():
                admin.ask("ACL", "SETUSER", self._names.user(token), *self._names.rules(token, secret))
                if token in held:
                    admin.ask("ACL", "SETUSER", self._names.user(token), *NO_COMMANDS)

    @contextmanager
    def _asking(self, doing: str) -> Iterator[Admin]:
        self.server.wait()
        admin = self._admin
        if admin is None:
            raise ResourceFailed(f"{self.name}: {doing}: the server is not started", resource=self.name)
        with failures_told(self.name, doing), told(self.name, doing):
            yield admin

    # -- the base ---------------------------------------------------------------------------------------------

    async def provision(self) -> Sealed:
        """An empty namespace."""
        return await in_thread(self._provision)

    def _provision(self) -> Sealed:
        self._start()
        version = self._ledger.base_version(hashlib.sha256(b"empty").hexdigest())
        record = self._ledger.find_sealed(version)
        if record is None:
            with failures_told(self.name, "recording the base"), self._ledger.new_layer("base") as (layer, place):
                dumps.write(place / dumps.FILE_NAME, None, "", set(), pulse)
            record = SealedRecord(handle=self._sealed_handle(version), layers=(layer,))
            self._ledger.put_sealed(record)
        return record.handle

    def _sealed_handle(self, version: str) -> Sealed:
        return Sealed(journal=self._ledger.journal, resource=self.name, adapter=ADAPTER, version=version)

    # -- branches ---------------------------------------------------------------------------------------------

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """A namespace of its own, filled from a version."""
        return await in_thread(self._branch, sealed, owner)

    def _branch(self, sealed: Sealed, owner: Owner) -> Branch:
        layers = self._ledger.sealed(sealed).layers
        token = self._names.new_token()
        handle = Branch(
            journal=sealed.journal,
            resource=self.name,
            adapter=ADAPTER,
            id=self._ledger.new_id(f"{owner.env}-e{owner.epoch}"),
            env=owner.env,
            epoch=owner.epoch,
            base=sealed.version,
            data={"namespace": token},
        )
        with self._ledger.pinned(layers):
            try:
                self._ledger.put_branch(BranchRecord(handle=handle, over=sealed, layers=layers))
                if self.kept:
                    self._ledger.note_mark(handle, self._fill(token, layers[0]))
            except BaseException:
                self._drop_branch(handle.id)
                raise
        return handle

    def _fill(self, token: str, layer: str) -> str:
        prefix = self._names.prefix(token)
        with self._asking("filling a namespace") as admin:
            assert self._watching is not None, "what is kept is watched"
            self._watching.watch(token)
            path = self._ledger.layer(layer) / dumps.FILE_NAME
            dumps.restore(path, admin, prefix, absolute=self.options.ttl == "absolute", pulse=pulse)
            return self._watching.mark(token, prefix)

    @staticmethod
    def _token(branch: Branch) -> str:
        return str(branch.data["namespace"])

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """The address is what a client of Redis asks for; the secret opens this namespace alone."""
        return await in_thread(self._bind, branch, identity)

    def _bind(self, branch: Branch, identity: Identity) -> Binding:
        self._ledger.branch(branch)
        token = self._token(branch)
        user, prefix = self._names.user(token), self._names.prefix(token)
        with self._asking("making a user") as admin, self._lock:
            known = self._secrets.get(token)
            secret = known[1] if known is not None and known[0] == identity else secrets.token_hex(24)
            admin.ask("ACL", "SETUSER", user, *self._names.rules(token, secret))
            self._secrets[token] = (identity, secret)
        door = self.server.door()
        return Binding(
            journal=branch.journal,
            resource=self.name,
            adapter=ADAPTER,
            branch=branch.id,
            identity=identity,
            address={
                **door,
                "url": url_of(door, user, secret),
                "user": user,
                "password": secret,
                "prefix": prefix,
                "kept": self.kept,
            },
        )

    async def probe(self, binding: Binding) -> None:
        """Connect and ask as the application does."""
        await in_thread(self._probe, binding)

    def _probe(self, binding: Binding) -> None:
        address = binding.address
        try:
            if self._ledger.find_branch(binding.branch) is None:
                raise ResourceFailed(f"branch {binding.branch!r} was discarded")
            with told(self.name, "asking as the application"):
                client = connected(self.server.door(), str(address["user"]), str(address["password"]))
                with client:
                    client.execute_command("EXISTS", str(address["prefix"]))
        except ResourceFailed as error:
            raise NotReady(
                f"{self.name}: the namespace of {binding.identity} can't be reached: {error.message}",
                resource=self.name,
            ) from error

    async def unbind(self, binding: Binding) -> None:
        """The user is no more, and its connections are closed."""
        await in_thread(self._unbind, binding)

    def _unbind(self, binding: Binding) -> None:
        record = self._ledger.find_branch(binding.branch)
        if record is not None:
            token = self._token(record.handle)
            with self._lock:
                if self._secrets.get(token, (binding.identity, ""))[0] != binding.identity:
                    return  # a later activation has taken over
            self._lock_out(token)

    def _lock_out(self, token: str) -> None:
        with self._lock:
            self._secrets.pop(token, None)
            self._held.discard(token)
        if self._admin is not None and not self.server.given_up:
            with self._asking("removing a user") as admin:
                admin.ask("ACL", "DELUSER", self._names.user(token))

    # -- the cut ----------------------------------------------------------------------------------------------

    async def quiesce(self, branch: Branch) -> None:
        """Let the branch's user do nothing until thaw. Raises ResourceBusy, naming who holds something."""
        await in_thread(self._quiesce, branch)

    def _quiesce(self, branch: Branch) -> None:
        self._ledger.branch(branch)
        token = self._token(branch)
        if not self.kept:
            return
        with self._asking("quiescing") as admin:
            self._allow(admin, token, NO_COMMANDS)
            with self._lock:
                self._held.add(token)
            found = holders(admin, self._names.user(token))
        if found:
            self._thaw(branch)
            raise ResourceBusy(
                f"{self.name}: clients of {branch.env} are in the middle of something: {'; '.join(found)}",
                hint="Let them end it, then try again",
                resource=self.name,
                env=branch.env,
            )

    def _allow(self, admin: Admin, token: str, commands: tuple[str, ...]) -> None:
        with self._lock:
            if token in self._secrets:
                admin.ask("ACL", "SETUSER", self._names.user(token), *commands)

    async def thaw(self, branch: Branch) -> None:
        """Undo quiesce. Idempotent."""
        await in_thread(self._thaw, branch)

    def _thaw(self, branch: Branch) -> None:
        token = self._token(branch)
        with self._lock:
            held = token in self._held
        if held:
            with self._asking("thawing") as admin:
                self._allow(admin, token, COMMANDS)
            with self._lock:
                self._held.discard(token)

    async def write_mark(self, branch: Branch) -> str:
        """What the server told of changes in the namespace."""
        return await in_thread(self._mark, branch)

    def _mark(self, branch: Branch) -> str:
        self._ledger.branch(branch)
        if not self.kept:
            return _UNKEPT
        token = self._token(branch)
        with self._asking("reading what changed"):
            assert self._watching is not None, "what is kept is watched"
            return self._watching.mark(token, self._names.prefix(token))

    async def seal(self, branch: Branch) -> Sealed:
        """Write the namespace's keys to a file. What is not kept is the empty base for ever."""
        return await in_thread(self._seal, branch)

    def _seal(self, branch: Branch) -> Sealed:
        record = self._ledger.branch(branch)
        if not self.kept:
            return self._ledger.kept(record)
        mark = self._mark(branch)
        if mark == record.mark:
            return self._ledger.kept(record)
        token = self._token(branch)
        prefix = self._names.prefix(token)
        with self._asking("sealing") as admin, self._ledger.new_layer(f"{branch.env}-e{branch.epoch}") as made:
            assert self._watching is not None, "what is kept is watched"
            layer, place = made
            changes = self._watching.count(token)
            names = self._watching.keys(token, prefix)
            there = dumps.write(place / dumps.FILE_NAME, admin, prefix, names, pulse)
        with self._ledger.pinned([layer]), failures_told(self.name, "recording a version", env=branch.env):
            if self.options.survives == "os":
                sync_file_system(self._ledger.root)
            handle = self._sealed_handle(self._ledger.new_id(f"{branch.env}-e{branch.epoch}"))
            self._ledger.put_branch(msgspec.structs.replace(record, over=handle, layers=(layer,), mark=mark))
            self._ledger.put_sealed(SealedRecord(handle=handle, layers=(layer,)))
        self._ledger.collect(record.layers)
        self._watching.settle(token, there, changes)
        return handle

    # -- the end, and looking ---------------------------------------------------------------------------------

    def _drop_branch(self, branch: str) -> None:
        record = self._ledger.find_branch(branch)
        if record is not None and self._admin is not None and not self.server.given_up:
            self._clear(self._token(record.handle))
        self._ledger.drop_branch(branch)

    def _clear(self, token: str) -> None:
        self._lock_out(token)
        prefix = self._names.prefix(token)
        with self._asking("clearing a namespace") as admin:
            watching = self._watching
            names = watching.keys(token, prefix) if watching is not None else admin.keys(prefix)
            admin.remove(prefix, names)
            if watching is not None:
                watching.leave(token)

    def _items(self, record: SealedRecord, pulse: Pulse) -> Iterator[dumps.Item]:
        self._start()
        with self._ledger.pinned(record.layers), self._asking("reading a version") as admin:
            path = self._ledger.layer(record.layers[0]) / dumps.FILE_NAME
            yield from dumps.items(path, admin, self._names.prefix(self._names.new_token()), pulse)

    def _content_digest(self, record: SealedRecord) -> str:
        """Of names, types and values, and whether a key expires; not of when, nor of how values are encoded."""
        whole = hashlib.sha256()
        for item in self._items(record, pulse):
            whole.update(item.digest())
        return whole.hexdigest()

    def _changes(self, before: SealedRecord, after: SealedRecord) -> Generator[Change, None, None]:
        """Keys, in the order of their names."""
        yield from changes_between(self._items(before, no_pulse), self._items(after, no_pulse))

    def _unpacked(self, layer: str, place: Path) -> SealedRecord:
        return SealedRecord(handle=self._sealed_handle(layer), layers=(layer,))

    def _usage(self, handle: Sealed | Branch) -> Usage:
        """Of a version its file; of a branch the server's memory."""
        if isinstance(handle, Sealed):
            path = self._ledger.layer(self._ledger.sealed(handle).layers[0]) / dumps.FILE_NAME
            return Usage(private_bytes=path.stat().st_size)
        self._ledger.branch(handle)
        token = self._token(handle)
        prefix = self._names.prefix(token)
        with self._asking("measuring") as admin:
            names = self._watching.keys(token, prefix) if self._watching is not None else admin.keys(prefix)
            sizes = [
                size
                for batch in batches(sorted(names))
                for size in admin.ask_all(("MEMORY", "USAGE", prefix.encode() + name) for name in batch)
            ]
        return Usage(private_bytes=sum(size or 0 for size in sizes))
