"""Whether one server has the databases of all environments, or each environment one of its own; and why.

One server is the quicker way wherever it can clone. It is not where PostgreSQL is older than 18, or copies the bytes
when it is told to clone, though the file system shares extents when *we* ask: there, and where the contract says so,
servers are private. What was chosen holds for all versions of a state directory: the two have other forms on disk.
"""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from statefork.adapters.resources.ledger import remove_tree, write_whole
from statefork.adapters.resources.postgres.backend import Backend, Server
from statefork.adapters.resources.postgres.backends import Databases
from statefork.adapters.resources.postgres.binaries import server_programs
from statefork.adapters.resources.postgres.databases import DatabaseLedger
from statefork.adapters.resources.postgres.options import Options
from statefork.adapters.resources.postgres.private import PrivateServers, described, foreseen
from statefork.engine.errors import ContractError, MissingDependency
from statefork.engine.ports import Services, Strategy

SERVER = "server"  # where the one server is, below the resource's directory
_MARKER = "private"
_ASKED = "the contract asks for it"


class Verdict(msgspec.Struct, frozen=True):
    """One of the two, and why not the other."""

    private: bool
    why: str = ""


class Choice:
    """The databases of one resource, wherever they are. Safe for several threads."""

    def __init__(
        self, resource: str, options: Options, services: Services, server: Server, records: DatabaseLedger
    ) -> None:
        self._resource = resource
        self._options = options
        self._services = services
        self._server = server
        self._records = records
        self._lock = threading.Lock()
        self._chosen: Databases | None = None
        self._tried = False

    @property
    def backend(self) -> Databases:
        """What was chosen when it was started."""
        assert self._chosen is not None, "the resource was not started"
        return self._chosen

    @property
    def started(self) -> bool:
        """Whether it was chosen."""
        return self._chosen is not None

    def start(self) -> None:
        """Choose, once, and start. Raises ContractError where versions of the other form are there."""
        with self._lock:
            if self._chosen is None:
                verdict = self._verdict(self._is_fresh())
                self._note(verdict)
                self._chosen = self._private(verdict.why) if verdict.private else self._shared()
            if isinstance(self._chosen, Backend) and self._is_fresh() and self._copies(self._chosen):
                self._chosen.stop()
                if not self._server.process_ids():  # nobody uses it as well
                    remove_tree(self._records.root / SERVER)
                verdict = Verdict(True, "this PostgreSQL copies the bytes when it is told to clone")
                self._note(verdict)
                self._chosen = self._private(verdict.why)
            self._chosen.start()

    def stop(self) -> None:
        """Stop what was started. Idempotent."""
        if self._chosen is not None:
            self._chosen.stop()

    def process_ids(self) -> tuple[int, ...]:
        """The processes of our servers."""
        return self._chosen.process_ids() if self._chosen is not None else ()

    def strategy(self) -> Strategy:
        """What was chosen, or would be."""
        if self._chosen is not None:
            return self._chosen.strategy()
        try:
            verdict = self._verdict(self._is_fresh())
        except MissingDependency as error:
            return Strategy(name="none", reason=error.message, faster=error.hint)
        except ContractError as error:
            return Strategy(name="none", reason=error.message, faster=error.hint)
        if verdict.private:
            return described(verdict.why, foreseen(self._records.root), self._options)
        return self._shared().strategy()

    # -- choosing ---------------------------------------------------------------------------------------------

    def _verdict(self, fresh: bool) -> Verdict:
        asked = self._options.strategy
        if not self._server.own:
            return Verdict(False)
        if not fresh:
            return self._kept(asked)
        if asked != "auto":
            return Verdict(asked == "private", _ASKED)
        programs = server_programs(self._options.programs)
        if programs.clone or not foreseen(self._records.root).works:
            return Verdict(False)
        return Verdict(True, f"PostgreSQL {programs.version} can't clone files by itself")

    def _kept(self, asked: str) -> Verdict:
        try:
            why = self._marker().read_text()
        except FileNotFoundError:
            why = ""
        kept = "private" if why else "shared"
        if asked not in ("auto", kept):
            key = f"resources.{self._resource}.strategy"
            raise ContractError(
                f"{key}: the state directory has versions of the strategy {kept!r}, which {asked!r} can't read",
                hint=f"Say {kept!r} or 'auto', or begin with another state directory",
                key=key,
            )
        if asked == "private" and kept == asked:
            return Verdict(True, _ASKED)
        return Verdict(kept == "private", f"the state directory began so ({why})" if why else "")

    def _note(self, verdict: Verdict) -> None:
        marker = self._marker()
        if not verdict.private:
            marker.unlink(missing_ok=True)
        elif not marker.exists():
            marker.parent.mkdir(parents=True, exist_ok=True)
            write_whole(marker, verdict.why.encode())

    def _marker(self) -> Path:
        return self._records.root / _MARKER

    def _is_fresh(self) -> bool:
        """Whether there are no versions yet."""
        return next((self._records.root / "sealed").glob("*.json"), None) is None

    def _copies(self, shared: Backend) -> bool:
        """Whether the server copies though the file system could share."""
        tried, self._tried = self._tried, True
        if tried or self._options.strategy != "auto" or not self._server.own:
            return False
        shared.start()
        return shared.ways.clones and not shared.really_clones()

    def _shared(self) -> Backend:
        return Backend(self._resource, self._options, self._services.journal, self._server, self._records)

    def _private(self, why: str) -> PrivateServers:
        return PrivateServers(
            self._resource, self._options, self._services.state, self._services.journal, self._records, why
        )
