"""The immutable bases of a contract: made once, found again later, journaled when they are new."""

from __future__ import annotations

import anyio

from statefork.engine.conductor import Conductor
from statefork.engine.errors import ResourceFailed
from statefork.engine.staging import ComponentFailed, each
from statefork.journal.events import BaseProvisioned
from statefork.journal.values import Component, Sealed


class Bases:
    """Provisions every resource at the first use in this run."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self._lock = anyio.Lock()
        self._manifest: dict[str, Component] | None = None

    async def manifest(self) -> dict[str, Component]:
        """The bases as a manifest. Raises ResourceFailed naming the resource, or what it raised of ours."""
        async with self._lock, self._conductor.sharing.shared():
            if self._manifest is None:
                self._manifest = await self._provision()
            return self._manifest

    async def _provision(self) -> dict[str, Component]:
        conductor, sealed = self._conductor, dict[str, Sealed]()

        async def provision(name: str) -> None:
            sealed[name] = await conductor.resources[name].provision()

        try:
            await each(conductor.contract, provision, doing="provisioning")
        except ComponentFailed as failed:
            raise ResourceFailed(
                f"the base of {failed.component} can't be made: {failed.said}",
                hint=failed.hint,
                component=failed.component,
                reason=str(failed.cause),
            ) from failed.cause
        if conductor.keep is not None:
            await conductor.keep()
        specs = conductor.contract.resources
        manifest = {
            name: Component(sealed=sealed[name], durability=specs[name].durability, depends_on=specs[name].depends_on)
            for name in conductor.contract.order
        }
        ledger, digest = conductor.ledger, conductor.contract.digest
        if ledger.world.bases.get(digest) != manifest:
            await ledger.append_engine(BaseProvisioned(at=ledger.clock.now(), contract=digest, manifest=manifest))
        return manifest
