"""Comparing what was recorded with what a re-execution saw, and saying what that proves.

``exact-observed``: every step was done again and every observation has the recorded digest. ``diverged``: one has not,
and everything before it was done again. ``unverified``: something in between could not be done again or was never seen
(named), so equal observations prove little and different ones blame nobody.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Literal

import msgspec

from statefork.journal.errors import BlobMissing
from statefork.journal.values import Moment, Observation
from statefork.replay.lineage import Act, Given, Step, Trajectory, Witnessed
from statefork.replay.script import Played

Verdict = Literal["exact-observed", "unverified", "diverged"]

DIFF_LINES_MAX = 200
UNVERIFIED_MAX = 100


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a divergence. ``snapshot`` and ``screenshot`` are blob digests."""

    outcome: str
    error: str = ""
    url: str = ""
    title: str = ""
    digest: str = ""
    snapshot: str = ""
    screenshot: str = ""
    status: int = 0


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first step that went otherwise. ``number``: lineage number of its action (of an input: the one before it)."""

    number: int
    step: str
    position: int  # of the recorded event
    what: str
    recorded: Look
    seen: Look
    diff: str = ""  # unified diff of the accessibility snapshots


class RolloutResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a re-execution gave."""

    env: str
    child: str
    source: Moment
    verdict: Verdict
    actions: int
    steps: int  # actions and inputs
    compared: int  # of the steps
    unverified: tuple[str, ...] = ()
    divergence: Divergence | None = None
    kept: bool = False
    elapsed_ms: float = 0.0

    @property
    def exact(self) -> bool:
        """Every observation was reproduced."""
        return self.verdict == "exact-observed"

    @property
    def first_divergence(self) -> int:
        """Lineage number of the first action that went otherwise; 0 = none."""
        return self.divergence.number if self.divergence is not None else 0


class Judge:
    """Holds the recording and is shown each step as it was played. ``note`` says when it has seen enough."""

    def __init__(self, recording: Trajectory, read_blob: Callable[[str], bytes]) -> None:
        self._steps = iter(zip(recording.steps, recording.witnessed, strict=True))
        self._read_blob = read_blob
        self._unverified: list[str] = []
        self.compared = 0
        self.divergence: Divergence | None = None

    def note(self, played: Played) -> bool:
        """Compare the next recorded step with how it was played. True: it went otherwise, there is no need to go on."""
        step, witnessed = next(self._steps)
        name = describe(step)
        if played.outcome == "skipped":
            self._cannot(f"{name}: {played.error}")
        elif witnessed.outcome == "unknown":
            self._cannot(f"{name}: when it was recorded, its outcome was unknown")
        else:
            what = _difference(witnessed, played)
            if what:
                self.divergence = self._divergence(step, witnessed, played, what)
                return True
            if isinstance(step, Act) and witnessed.outcome == "ok" and witnessed.observation is None:
                self._cannot(f"{name}: nothing was observed when it was recorded")
            else:
                self.compared += 1
        return False

    @property
    def unverified(self) -> tuple[str, ...]:
        """What could not be verified, by name; at most ``UNVERIFIED_MAX`` of them."""
        return tuple(self._unverified)

    @property
    def verdict(self) -> Verdict:
        """What the comparison proves so far."""
        if self._unverified:
            return "unverified"
        return "diverged" if self.divergence is not None else "exact-observed"

    def _cannot(self, sentence: str) -> None:
        if len(self._unverified) < UNVERIFIED_MAX:
            self._unverified.append(sentence)

    def _divergence(self, step: Step, witnessed: Witnessed, played: Played, what: str) -> Divergence:
        return Divergence(
            number=step.number if isinstance(step, Act) else step.after,
            step=describe(step),
            position=witnessed.position,
            what=what,
            recorded=_look(witnessed.outcome, witnessed.error, witnessed.observation, witnessed.status),
            seen=_look(played.outcome, played.error, played.observation, played.status),
            diff=self._diff(witnessed.observation, played.observation),
        )

    def _diff(self, recorded: Observation | None, seen: Observation | None) -> str:
        old, new = self._text(recorded), self._text(seen)
        lines = list(difflib.unified_diff(old, new, "recorded", "seen", lineterm="", n=2))
        if len(lines) > DIFF_LINES_MAX:
            lines = [*lines[:DIFF_LINES_MAX], f"… {len(lines) - DIFF_LINES_MAX} more lines"]
        return "\n".join(lines)

    def _text(self, observation: Observation | None) -> list[str]:
        if observation is None or not observation.snapshot:
            return []
        try:
            return self._read_blob(observation.snapshot).decode(errors="replace").splitlines()
        except BlobMissing as error:
            return [f"({error.message})"]


def _difference(witnessed: Witnessed, played: Played) -> str:
    """What differs, as a clause; empty when nothing does."""
    if witnessed.outcome != played.outcome:
        return f"it was {witnessed.outcome} and is now {played.outcome}"
    if witnessed.status != played.status:
        return f"it was answered {witnessed.status} and is now answered {played.status}"
    recorded, seen = witnessed.observation, played.observation
    if recorded is None or (recorded.digest == (seen.digest if seen is not None else "")):
        return ""
    if seen is None:
        return "it was observed and is now not"
    if recorded.url != seen.url:
        return "another address"
    if recorded.title != seen.title:
        return "another title"
    if recorded.snapshot != seen.snapshot:
        return "another page content"
    names = sorted(name for name in recorded.parts | seen.parts if recorded.parts.get(name) != seen.parts.get(name))
    return f"another {', '.join(names)}" if names else "another digest of the same page"


def _look(outcome: str, error: str, observation: Observation | None, status: int) -> Look:
    if observation is None:
        return Look(outcome=outcome, error=error, status=status)
    return Look(
        outcome=outcome,
        error=error,
        url=observation.url,
        title=observation.title,
        digest=observation.digest,
        snapshot=observation.snapshot,
        screenshot=observation.screenshot,
        status=status,
    )


def describe(step: Step) -> str:
    """What people call a step."""
    if isinstance(step, Given):
        return f"input {step}"
    return f"action {step.number} ({step.action.get('type', 'unnamed')})"
