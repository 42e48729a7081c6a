"""What the demo found, as values: printed by the command line, or given out whole as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation: what was judged, at which generation, and the facts that were not as they should be."""

    what: str
    generation: int
    score: float
    facts: dict[str, Any]

    @property
    def good(self) -> bool:
        """Whether every fact held."""
        return self.score == 1.0


class EnvironmentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One environment at the end of the demo."""

    name: str
    task: str
    origin: str  # "base", or the moment it was forked from
    generation: int
    epoch: int
    actions: int  # carried out in this environment
    inherited_actions: int  # of its lineage before the fork
    checked: tuple[Checked, ...]
    ms_per_action: float  # median, observation included
    private_bytes: dict[str, int]
    screenshots: int
    errors: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The lowest of its evaluations; 0 when there was none."""
        return min((check.score for check in self.checked), default=0.0)


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long an operation took, from the call until the environment was ready. Medians, in milliseconds."""

    op: str
    times: int
    ready_ms: float
    stores_ms: float  # the part of database and files: seal and branch
    browser_ms: float  # the part of the browser: capture, or new context, page and restore
    server_ms: float  # the part of the web server: binding and its probe


class RuntimeMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one shared runtime, PSS of its process tree, in bytes."""

    name: str
    processes: int
    with_one: int
    with_all: int
    at_end: int
    per_environment: float  # (with_all - with_one) / (environments - 1)

    @property
    def shared(self) -> float:
        """What is there once, however many environments there are: the line's intercept."""
        return self.with_one - self.per_environment


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the whole."""

    environments: int  # on which the quotient rests
    environments_at_end: int
    runtimes: tuple[RuntimeMemory, ...]
    engine: int
    how: str = (
        "PSS of each runtime's processes from smaps_rollup, measured with one environment (the server warmed by some "
        "requests) and again with all of them, each showing the start page; per environment = the difference / "
        "(environments - 1)"
    )


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A sibling, re-executed from its journal and compared."""

    env: str
    actions: int
    exact: bool
    verdict: str
    seconds: float


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """The audit after the engine was closed."""

    clean: bool
    events: int
    lines: tuple[str, ...]


class Branching(msgspec.Struct, frozen=True, kw_only=True):
    """One environment in the lineage."""

    name: str
    parent: str | None  # the moment it was forked from


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo. ``problems`` is empty when everything was as it should be."""

    run: int
    seconds: float
    database: str = "sqlite"
    environments: tuple[EnvironmentReport, ...] = ()
    lineage: tuple[Branching, ...] = ()
    timings: tuple[Timing, ...] = ()
    memory: Memory | None = None
    replayed: Replayed | None = None
    audited: Audited | None = None
    screenshots: str = ""
    state: str = ""
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything was as it should be."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """The demo in one line."""
        checks = [check for env in self.environments for check in env.checked]
        good = sum(check.good for check in checks)
        if self.ok:
            servers = "one server, one PostgreSQL" if self.database == "postgres" else "one server"
            return (
                f"All as it should be: {len(self.environments)} environments on {servers} and one browser, "
                f"{good} of {len(checks)} evaluations full, replay exact, audit clean, {self.seconds:.0f} s."
            )
        return (
            f"NOT as it should be: {len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}, "
            f"{good} of {len(checks)} evaluations full, {self.seconds:.0f} s. First: {self.problems[0]}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types; times in milliseconds or seconds and sizes in bytes, as the names say."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {"ok": self.ok, "verdict": self.verdict, **plain}
