"""The protocols that adapters implement, and what the engine offers to them.

A resource is one entry of a contract. The engine calls it in this order::

    provision                                   once per contract: the immutable base
    branch -> bind -> probe                     staging and activation, in dependency order
    quiesce -> write_mark -> seal -> write_mark -> thaw        a continuing snapshot
    unbind -> discard(branch)                   parking, retiring, the old side of a switch
    discard(sealed)                             garbage collection

Every method is cancellable, and idempotent by handle: recovery may call it again. Whatever a cancelled method had made
by then it removes itself, or ``inventory`` reports it. All paths in handles are relative to the state directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from statefork.engine.masks import Selector
from statefork.journal.values import Binding, Branch, Conditions, Handle, Identity, Json, Observation, Sealed


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter does its work here, found by probing. Shown by ``statefork doctor``."""

    name: str
    reason: str
    faster: str = ""  # what would be faster, and what that needs; empty when nothing would


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a handle costs by itself. Bytes that are shared with others are not in ``private_bytes``."""

    private_bytes: int
    shared_bytes: int = 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two sealed versions, in the user's terms: a row, a file, a cookie."""

    kind: str  # added | removed | changed
    name: str
    before: Json = None
    after: Json = None
    group: str = ""  # what people count it under: a table, cookies; empty where all are of one sort


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a branch is opened."""

    env: str
    epoch: int


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that one depends on, by name: their bindings, and the versions that their branches continue."""

    bindings: Mapping[str, Binding] = {}
    versions: Mapping[str, Sealed] = {}
    conditions: Conditions | None = None  # for a Conditioned resource: what holds once it is bound


@runtime_checkable
class Resource(Protocol):
    """One kind of mutable state, for one contract entry."""

    name: str  # the contract's name for it
    adapter: str  # files, sqlite, browser, web, …

    def strategy(self) -> Strategy:
        """Which way of branching was chosen, and why. Never raises; does not touch the world."""
        ...

    async def start(self) -> None:
        """Start or find the shared runtime (Chromium, an application server). Idempotent."""
        ...

    async def stop(self) -> None:
        """Stop what ``start`` started; every branch must be unbound before. Idempotent."""
        ...

    async def provision(self) -> Sealed:
        """The immutable base: made once, found again later. The same base gives the same version."""
        ...

    async def branch(self, sealed: Sealed, owner: Owner) -> Branch:
        """Open a private writable branch over a sealed version: always at a new path, never a replaced file."""
        ...

    async def bind(self, branch: Branch, identity: Identity, needs: Needs) -> Binding:
        """Make the branch reachable for one activation. Binding again with other needs replaces the binding."""
        ...

    async def probe(self, binding: Binding) -> None:
        """Return when the binding answers through the door that its users take; raise NotReady otherwise."""
        ...

    async def quiesce(self, branch: Branch) -> None:
        """Stop background writers and release what would hold a writer open, until ``thaw``.

        Called when all leases have ended. Raises ResourceBusy, naming the holder, where that is impossible.
        """
        ...

    async def thaw(self, branch: Branch) -> None:
        """Undo ``quiesce``: users go on, with the same epoch and addresses."""
        ...

    async def write_mark(self, branch: Branch) -> str:
        """An opaque value that differs whenever the branch's content was written in between.

        It comes from the store's own counters, not from our book-keeping, and sealing does not change it.
        """
        ...

    async def seal(self, branch: Branch) -> Sealed:
        """Make the quiesced branch's present content an immutable version; the branch goes on, over it.

        A branch that is unchanged since its last seal gives the very same Sealed, for free; unless that version was
        discarded meanwhile (an aborted transition does so), then it is sealed anew.
        """
        ...

    async def unbind(self, binding: Binding) -> None:
        """Close everything that reaches the branch through this binding, and join it."""
        ...

    async def discard(self, handle: Handle) -> None:
        """Remove what the handle names; what other versions are built on survives. Idempotent."""
        ...

    def inventory(self) -> AsyncIterator[Handle]:
        """Everything of this journal and resource that exists in the world, for recovery and collection."""
        ...

    async def digest(self, sealed: Sealed) -> str:
        """SHA-256 (hex) of the version's content, independent of physical layout."""
        ...

    def diff(self, before: Sealed, after: Sealed) -> AsyncIterator[Change]:
        """What changed, in the user's terms. Bounded by the consumer."""
        ...

    async def usage(self, handle: Handle) -> Usage:
        """What the handle costs on disk."""
        ...


@runtime_checkable
class Drainable(Protocol):
    """A resource whose runtime may still work for a branch when every lease has ended (a thread after its response)."""

    async def pending(self, branch: Branch) -> tuple[str, ...]:
        """What is still working, each by a name that a person understands."""
        ...

    async def drained(self, branch: Branch) -> None:
        """Return when nothing is pending. Cancelled at the drain deadline."""
        ...

    async def terminate(self, branch: Branch) -> tuple[str, ...]:
        """End what can be ended and cut the rest off from the branch's stores; return the names of what lives on."""
        ...


@runtime_checkable
class Foresighted(Protocol):
    """A resource that can begin to make a branch before anybody asks for it."""

    def expect_fork(self, branch: Branch) -> None:
        """A branch of what is sealed of this one next, which is quiesced, will be wanted as soon as it is published.

        Returns at once; what nobody takes then goes by itself.
        """
        ...


@runtime_checkable
class Keeper(Protocol):
    """A resource that keeps something of an environment while it is parked (the port of its base URL)."""

    async def forget(self, env: str) -> None:
        """The environment has ended, or was never published: let go of what was kept for it. Idempotent."""
        ...


@runtime_checkable
class Portable(Protocol):
    """A resource whose versions can be carried to another journal, on another machine, in files."""

    async def pack(self, sealed: Sealed, directory: Path) -> None:
        """Write a version into an empty directory: plain files with plain names (letters, digits, ``.``, ``-``, ``_``).

        Nothing in them is of this journal or machine, and no password is. Raises ResourceFailed, naming what can't be
        carried.
        """
        ...

    async def unpack(self, directory: Path) -> Sealed:
        """Make a new version of what ``pack`` wrote elsewhere, which is not to be trusted; the directory stays.

        Raises ResourceFailed where it is not what ``pack`` writes; nothing is left behind then.
        """
        ...


@runtime_checkable
class Resident(Protocol):
    """A resource whose runtime is a resident process, shared by all environments."""

    def process_ids(self) -> tuple[int, ...]:
        """The runtime's processes now, all environments together; empty while it is down."""
        ...


@runtime_checkable
class Slotted(Protocol):
    """A resource whose bindings take a place of which there are only so many (a browser context, a display)."""

    @property
    def slot(self) -> str:
        """The kind of place; what ``Settings.max_slots`` names."""
        ...


@runtime_checkable
class Mortal(Protocol):
    """A resource whose bindings can die under their users: a page's process may crash, a browser be killed."""

    def died(self, binding: Binding) -> str:
        """Why the binding will never answer again; empty while it lives. Never waits."""
        ...


@runtime_checkable
class Actor(Protocol):
    """A resource through which an agent acts and sees (a browser, a desktop)."""

    def check(self, action: Mapping[str, Json]) -> None:
        """Raise InvalidAction, naming the field, when the action is not one that ``act`` knows."""
        ...

    async def act(self, binding: Binding, action: Mapping[str, Json]) -> Observation:
        """Carry out the action, wait until the world is quiet, and observe.

        Raises ActionFailed (carried out, refused by the world), RuntimeDied. Cancellation is waited to its real end.
        """
        ...

    async def observe(self, binding: Binding) -> Observation:
        """Look without acting."""
        ...

    def raw(self, binding: Binding) -> AbstractAsyncContextManager[Any]:
        """The native object (a Playwright page) for one opaque action."""
        ...


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Where the gateway sends requests for one host of the environment's world."""

    host: str  # what the agent sees, e.g. "shop.example"
    upstream_host: str
    upstream_port: int
    ticket_key: bytes = b""  # the server's secret: the gateway signs, the server verifies; empty = no ticket
    private: str = ""  # a resource with a backend for each environment (see engine.pointing)
    outside: str = ""  # http or https: a host outside of the world (see engine.outside)


class Listener(Protocol):
    """One open door: a loopback port that carries one identity."""

    host: str  # the loopback address; a site door has one of its own where the machine allows it
    port: int
    identity: Identity | None  # of a proxy door; a site door belongs to the environment, whatever its epoch
    base_url: str  # "http://HOST:PORT", without a slash at the end
    conditions: str  # if any: under which requests are answered, instead of their leases' own

    async def end(self, identity: Identity) -> None:
        """Close the connections that still carry this identity (an open WebSocket, an event stream), and join them."""
        ...

    async def close(self) -> None:
        """Stop accepting, end what is under way, and free the port. Idempotent."""
        ...


class Gateway(Protocol):
    """The only way from a client to a shared server. Implemented in ``adapters/interfaces/gateway``."""

    async def open_proxy(self, identity: Identity, routes: tuple[Route, ...]) -> Listener:
        """A forward-proxy port for a browser: whatever comes through it is of this identity."""
        ...

    async def open_site(self, env: str, route: Route) -> Listener:
        """A private base URL for plain HTTP clients (evaluators, scripts): always the present generation."""
        ...


class Blobs(Protocol):
    """Content-addressed store for what observations point at."""

    def put(self, data: bytes) -> str:
        """Store and return the SHA-256 hex digest. Storing the same bytes again costs nothing."""

    def get(self, digest: str) -> bytes:
        """The bytes; raises BlobMissing."""


class Clock(Protocol):
    """The engine's only time. Deadlines run on anyio's own clock, so that mock clocks work."""

    def now(self) -> float:
        """Unix seconds, UTC: what events bear."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment: what durations are measured by."""


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter gets besides its contract entry."""

    state: Path  # the state directory, absolute
    journal: str  # the journal's id, or the place's where several share it: to be borne by every handle
    blobs: Any  # Blobs
    gateway: Any = None  # Gateway; None where no adapter of the contract needs one
    base_dir: Path  # what relative ``base`` paths of the contract are relative to
    durability: str = "authoritative"  # what the contract says of this entry
    determinism: str = "off"  # off | record | strict: what the contract says of chance and time
    selectors: tuple[Selector, ...] = ()  # which elements of pages the contract's masks take out


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway knows of a request when it asks for a lease."""

    identity: Identity | None  # of the door, for proxies
    env: str  # for site doors
    method: str
    url: str
    kind: str  # request | stream | websocket-message | event-stream-message
    pinned_epoch: int | None = None  # from a client that insists on one epoch


class RequestLease(Protocol):
    """What the gateway sees of a lease. Its body runs in the lease's cancel scope: revoking cancels and joins it."""

    @property
    def id(self) -> int:
        """Its number in this run of the engine."""
        ...

    @property
    def identity(self) -> Identity:
        """Whose ticket the request gets."""
        ...

    @property
    def generation(self) -> int:
        """The generation it was granted on."""
        ...

    @property
    def root(self) -> bool:
        """Whether no action and no transition caused it: if it mutates, it is an input of the trajectory."""
        ...

    @property
    def conditions(self) -> str:
        """Under what chance and time it is to be answered, as a server is told (see tickets); empty: under the real."""

    def spoil(self, reason: str) -> None:
        """The server failed under the request: the answer is the gateway's own, and whoever caused it is told so."""
        ...

    def carry(self, name: str) -> AbstractContextManager[None]:
        """Around a connection that lives on when the lease has ended, at rest between its messages.

        A transition names it among what it found open, as *held*, and does not wait for it.
        """
        ...


class Admission(Protocol):
    """Implemented by the engine, used by the gateway."""

    def admit(self, request: AdmissionRequest) -> AbstractAsyncContextManager[RequestLease]:
        """A lease around one request (or one message of a long-lived one).

        The lease is a child of the action, or of the staging transition, that caused the request, and otherwise a root
        lease of its own. Raises EnvironmentFrozen, StaleGeneration, UnknownEnvironment; each is journaled as a refusal.
        The two message kinds are held instead of refused while the environment is frozen: they go on after a
        continuing transition, and raise StaleGeneration after a switching one. A lease that was revoked raises
        LeaseRevoked when its body has ended.
        """
        ...

    def refuse(self, request: AdmissionRequest, *, status: int, code: str, detail: str) -> None:
        """Journal a refusal that needed no admission: an unknown host, a malformed request. Never waits."""
        ...

    def record_input(
        self, lease: RequestLease, *, method: str, url: str, headers: Mapping[str, str], body: bytes, status: int
    ) -> None:
        """Journal a mutating request of a root lease, its body as a blob. ``status`` 0: no answer came. Never waits."""
        ...
