"""Putting an engine together: state directory, journal, bases, gateway, resources and kernel."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec

from statefork.adapters.interfaces.gateway import open_gateway
from statefork.adapters.interfaces.registry import check_masks, check_options, check_programs, make_resources
from statefork.adapters.interfaces.store.opened import open_store
from statefork.adapters.interfaces.worlds import Progress, prepare_bases, read_contract
from statefork.adapters.resources.ledger import remove_tree
from statefork.engine.contract import check_bases
from statefork.engine.kernel import Kernel, open_kernel
from statefork.engine.lifecycle import nobody_listens
from statefork.engine.outside import Answer, Question
from statefork.engine.ports import AdmissionRequest, Blobs, RequestLease, Services
from statefork.engine.runtimes import reap_leftovers
from statefork.engine.settings import Settings
from statefork.journal.lock import tell_closing
from statefork.journal.log import Journal
from statefork.journal.store import open_state
from statefork.replay.export.importing import SCRATCH
from statefork.replay.recalling import Recalling


class Assembled(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a running engine."""

    kernel: Kernel
    journal: Journal
    blobs: Blobs
    state: Path


class LateAdmission:
    """The gateway's way to a kernel that is opened after it: the kernel needs resources, and those need the gateway.

    No door is open before the kernel is there, so nothing can ask too early.
    """

    def __init__(self) -> None:
        self.kernel: Kernel | None = None

    def _there(self) -> Kernel:
        assert self.kernel is not None, "a door was opened before the kernel"
        return self.kernel

    def admit(self, request: AdmissionRequest) -> AbstractAsyncContextManager[RequestLease]:
        """See :class:`statefork.engine.ports.Admission`."""
        return self._there().admit(request)

    def refuse(self, request: AdmissionRequest, *, status: int, code: str, detail: str) -> None:
        """See :class:`statefork.engine.ports.Admission`."""
        self._there().refuse(request, status=status, code=code, detail=detail)

    def record_input(
        self, lease: RequestLease, *, method: str, url: str, headers: Mapping[str, str], body: bytes, status: int
    ) -> None:
        """See :class:`statefork.engine.ports.Admission`."""
        self._there().record_input(lease, method=method, url=url, headers=headers, body=body, status=status)

    async def exchange(self, lease: RequestLease, question: Question, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """See :class:`statefork.engine.outside.Outside`."""
        return await self._there().outside.exchange(lease, question, ask)


def _telling(progress: Progress | None) -> Progress:
    """For the thread that builds: tell how far it is, unless nobody waits for it any more."""

    def tell(fraction: float, text: str) -> None:
        with suppress(anyio.NoEventLoopError):  # a world may report from a thread of its own
            anyio.from_thread.check_cancelled()
        if progress is not None:
            progress(fraction, text)

    return tell


@asynccontextmanager
async def assemble(
    contract: str | Path, *, state: Path, settings: Settings, progress: Progress | None, journal: str | None = None
) -> AsyncIterator[Assembled]:
    """A running engine over a state directory. See :func:`statefork.open_engine` for what is raised.

    ``journal``: its address, where it is in a database.
    """
    parsed, file = read_contract(contract)
    check_options(parsed)  # before anything is made: a typo leaves no state directory behind
    if parsed.build is None:
        check_bases(parsed, file.parent)
    check_programs(parsed, file.parent if parsed.build is None else None)
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_state(state, write=True, journal=journal))
        await anyio.to_thread.run_sync(reap_leftovers, opened.path, opened.owner)
        await anyio.to_thread.run_sync(remove_tree, opened.path / SCRATCH)  # of an import that was killed
        store = await stack.enter_async_context(open_store(opened.path, opened.owner))
        base_dir = await anyio.to_thread.run_sync(prepare_bases, parsed, file, opened.path, _telling(progress))
        check_bases(parsed, base_dir)
        check_programs(parsed, base_dir)
        admission = LateAdmission()
        async with open_gateway(admission, name=opened.owner, exchange=admission.exchange) as gateway:
            services = Services(
                state=opened.path,
                journal=opened.owner,
                blobs=opened.blobs,
                gateway=gateway,
                base_dir=base_dir,
                determinism=parsed.determinism,
                selectors=parsed.selectors,
            )
            resources = make_resources(parsed, services)
            check_masks(parsed, resources)
            async with open_kernel(
                journal=opened.journal,
                contract=parsed,
                resources=resources,
                blobs=opened.blobs,
                settings=settings,
                keep=store.keep if store is not None else None,
                place=opened.place,
                tell=progress or nobody_listens,
                where=f"{opened.path} on {platform.node() or 'an unnamed machine'}" if opened.place else "",
            ) as kernel:
                admission.kernel = kernel
                kernel.outside.recall = Recalling(opened.journal)
                try:
                    yield Assembled(kernel=kernel, journal=opened.journal, blobs=opened.blobs, state=opened.path)
                finally:
                    tell_closing(opened.path)
