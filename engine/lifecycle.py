"""Opening and closing an engine in good order."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from msgspec.structs import replace

from statefork.engine.collect import Counted, collect
from statefork.engine.conductor import Conductor
from statefork.engine.contract import DECLARE_PRIVATE
from statefork.engine.errors import ContractError, EngineClosed, MissingDependency
from statefork.engine.ports import Actor, Resource
from statefork.engine.recovery import RecoveryReport, recover
from statefork.journal.errors import JournalError
from statefork.journal.events import ContractRegistered, EngineStarted, EngineStopped, RecoveryFinished

Tell = Callable[[float, str], None]
"""Called with a fraction from 0 to 1 and what is being done, which stays the same while that goes on."""

_logger = logging.getLogger(__name__)


def nobody_listens(_fraction: float, _doing: str) -> None:
    """For whoever does not want to know."""


def _counted(tell: Tell, doing: str) -> Counted:
    """What is counted, told: ``doing`` has a place for how many there are."""
    return lambda done, of: tell(done / of, doing.format(of))


@asynccontextmanager
async def opening(
    conductor: Conductor, *, pid: int, release: str, where: str, tell: Tell = nobody_listens
) -> AsyncIterator[tuple[str, RecoveryReport]]:
    """Announce the run, start the resources, recover and collect; stop the resources at the end."""
    ledger, contract, resources = conductor.ledger, conductor.contract, conductor.resources
    if resources.keys() != contract.resources.keys():
        raise ContractError(
            "the resources are not those of the contract", key=" ".join(sorted(resources.keys() ^ contract.resources))
        )
    run = f"run-{ledger.world.runs + 1}"
    started = EngineStarted(at=ledger.clock.now(), run=run, pid=pid, statefork=release, where=where)
    await ledger.append_engine(started)
    if contract.digest not in ledger.world.contracts:
        registered = ContractRegistered(
            at=ledger.clock.now(), digest=contract.digest, name=contract.name, text=contract.text
        )
        await ledger.append_engine(registered)
    running: list[Resource] = []
    try:
        for number, name in enumerate(contract.order):
            tell(number / len(contract.order), f"starting {name}")
            running.append(resources[name])
            try:
                await resources[name].start()
            except MissingDependency as missing:
                if not isinstance(resources[name], Actor):
                    missing.hint = f"{missing.hint.rstrip('.')}; {DECLARE_PRIVATE}" if missing.hint else DECLARE_PRIVATE
                raise
        began = ledger.clock.monotonic()
        parallel_max = conductor.settings.parallel_max
        settling, removing = "recovering environments: {}", "removing what nothing reaches: {}"
        report = await recover(ledger, parallel_max=parallel_max, count=_counted(tell, settling))
        collection = await collect(
            ledger, contract, resources, (), parallel_max=parallel_max, count=_counted(tell, removing)
        )
        elapsed_ms = (ledger.clock.monotonic() - began) * 1000
        report = replace(report, collection=collection, elapsed_ms=elapsed_ms)
        finished = RecoveryFinished(
            at=ledger.clock.now(),
            run=run,
            settled=report.settled,
            recovered=report.recovered,
            orphans=report.orphans,
            lost=report.lost,
            orphan_kinds=report.orphan_kinds,
            elapsed_ms=elapsed_ms,
            retired=tuple(one.env for one in report.released),
        )
        await ledger.append_engine(finished)
        yield run, report
    finally:
        with anyio.CancelScope(shield=True):
            for resource in reversed(running):
                await _stop(resource, conductor.settings.discard_s)


async def _stop(resource: Resource, deadline_s: float) -> None:
    with anyio.move_on_after(deadline_s) as late:
        try:
            await resource.stop()
        except Exception:
            _logger.exception("%s could not be stopped", resource.name)
    if late.cancelled_caught:
        _logger.error("%s did not stop within %g s", resource.name, deadline_s)


async def closing(conductor: Conductor, run: str) -> tuple[str, ...]:
    """Park every environment, and say so if all are; the names of those that are not: the next opening recovers them.

    No transition begins any more; those under way are waited for, and what they have bound is parked too. Gives up at
    ``close_s``, and when ``conductor.patience`` is cancelled.

    Never raises.
    """
    limiter = anyio.CapacityLimiter(conductor.settings.parallel_max)
    ledger = conductor.ledger

    async def park(env: str) -> None:
        async with limiter:
            try:
                await conductor.park(env, "the engine closes", conductor.settings.drain_at_end, at_end=True)
            except Exception as error:
                _logger.warning("%s could not be parked and will be recovered at the next open: %s", env, error)
                _logger.debug("why %s could not be parked", env, exc_info=True)

    async def park_bound() -> None:
        async with anyio.create_task_group() as tasks:
            for env, live in list(conductor.lives.items()):
                if live.context is not None and env not in tried:  # what is in doubt is settled first
                    tried.add(env)
                    tasks.start_soon(park, env)

    tried: set[str] = set()
    left: tuple[str, ...] = ()
    conductor.closing = True
    with anyio.CancelScope(shield=True):
        patience = conductor.patience
        patience.deadline = anyio.current_time() + conductor.settings.close_s
        with patience:
            await park_bound()
            async with conductor.sharing.alone():
                pass  # what was under way has ended
            await park_bound()
            await conductor.pruning.tidy()
        for live in conductor.lives.values():  # what is not parked serves no more, and nobody waits for a thaw
            if live.context is not None and not live.doubt:
                live.context.gate.end(EngineClosed.of)
        left = ledger.world.environments.awake
        if not left:
            try:
                await ledger.append_engine(EngineStopped(at=ledger.clock.now(), run=run))
            except JournalError:
                _logger.warning("the end of %s can't be journaled", run, exc_info=True)
    return left
