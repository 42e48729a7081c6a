"""Comparing what was recorded with what a re-execution saw, and saying what that proves.

``exact-state``: at the end, all that the stores hold has the digest of what was sealed then, whatever was seen on the
way (when a cookie expires does not count). ``exact-observed``: every step was done again and every observation has the
recorded digest. ``diverged``: one has not, and everything before it was done again. ``unverified``: something in
between could not be done again or was never seen (named), so equal observations prove little and different ones blame
nobody. ``equivalent``: some observations, or what the stores hold, differ, and only where the contract's masks say that
they may.
"""

from __future__ import annotations

import difflib
from collections import deque
from typing import Literal

import msgspec

from statefork.engine.masks import NO_MASKS, Masks
from statefork.journal.errors import BlobMissing
from statefork.journal.values import Moment, Observation
from statefork.replay.lineage import Act, Given, Step, Trajectory, Witnessed
from statefork.replay.sameness import ReadBlob, difference, equivalent, masks_of_another_time
from statefork.replay.script import Played
from statefork.replay.steps import StepOutcome, StepResult, step_result

Verdict = Literal["exact-state", "exact-observed", "equivalent", "unverified", "diverged"]

DIFF_LINES_MAX = 200
UNVERIFIED_MAX = 100
BY_STEP_MAX = 1_000
"""Steps whose results are kept: of a longer re-execution the last ones."""


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
    masked: tuple[int, ...] = ()  # actions whose observations are equal under the contract's masks only
    divergence: Divergence | None = None
    by_step: tuple[StepResult, ...] = ()  # at most BY_STEP_MAX, the last ones
    states: dict[str, bool] = {}  # of each authoritative resource that was compared: whether it holds the same
    masked_states: tuple[str, ...] = ()  # of those that do not, the ones that differ only in what is masked
    expiries: tuple[str, ...] = ()  # cookies that are the same but for when they expire, by domain, path and name
    unasked: tuple[str, ...] = ()  # what actions had asked of hosts outside when recorded, and nobody asked again
    kept: bool = False
    copied_from: str = ""  # the child that was made so, where this one got what it held, and was seen to be like it
    passed_over: tuple[Moment, ...] = ()  # nearer generations, whose page was not brought back as it was
    ref: str = ""  # the moment that was made, by its lasting name in the child; its generation 1 is what was before
    elapsed_ms: float = 0.0

    @property
    def exact(self) -> bool:
        """What is held was reproduced, or every observation, also where what is held differs in what is masked."""
        if self.verdict == "equivalent":
            return bool(self.masked_states) and not self.masked and self.compared == self.steps
        return self.verdict in ("exact-state", "exact-observed")

    @property
    def first_divergence(self) -> int:
        """Lineage number of the first action that went otherwise; 0 = none."""
        return self.divergence.number if self.divergence is not None else 0


class Judge:
    """Holds the recording and is shown each step as it was played. ``note`` says when it has seen enough."""

    def __init__(self, recording: Trajectory, read_blob: ReadBlob, masks: Masks = NO_MASKS) -> None:
        self._steps = iter(zip(recording.steps, recording.witnessed, strict=True))
        self._of = len(recording.steps)
        self._done = 0
        self._differing: tuple[Step, Witnessed, Played] | None = None
        self._read_blob = read_blob
        self._unverified: list[str] = []
        self._masks = masks
        self.masked: list[int] = []  # actions that are equal under the masks only
        self.compared = 0
        self.divergence: Divergence | None = None
        self.unasked: tuple[str, ...] = ()
        self.by_step: deque[StepResult] = deque(maxlen=BY_STEP_MAX)

    def note(self, played: Played) -> StepResult:
        """Compare the next recorded step with how it was played. One that ``differs`` is where to end."""
        step, witnessed = next(self._steps)
        self._done += 1
        outcome, why = self._compare(step, witnessed, played)
        if outcome == "differs":
            self._differing = step, witnessed, played
            self.divergence = self._divergence(step, witnessed, played, why)
        result = step_result(self._done, self._of, step, played, outcome, why)
        self.by_step.append(result)
        return result

    def _compare(self, step: Step, witnessed: Witnessed, played: Played) -> tuple[StepOutcome, str]:
        if played.outcome == "skipped":
            return "skipped", self._cannot(step, played.error)
        if witnessed.outcome == "unknown":
            return "not compared", self._cannot(step, "when it was recorded, its outcome was unknown")
        if played.missed:
            return "differs", _of_missed(played.missed)
        what = _difference(witnessed, played, self._read_blob)
        if what and not self._equivalent(witnessed, played):
            return "differs", what + masks_of_another_time(witnessed.observation, self._masks)
        if what:
            self.masked.append(step.number if isinstance(step, Act) else step.after)
        if isinstance(step, Act) and witnessed.outcome == "ok" and witnessed.observation is None:
            return "not compared", self._cannot(step, "nothing was observed when it was recorded")
        self.compared += 1
        return ("masked", what) if what else ("same", "")

    def look_closer(self, observation: Observation | None, screenshot: str) -> StepResult:
        """What was to be seen after the step that differed, where that was not seen with it: its result then."""
        assert self._differing is not None, "something differed"
        assert self.divergence is not None, "something differed"
        step, witnessed, played = self._differing
        seen = played.observation or observation
        if seen is not None and screenshot:
            seen = msgspec.structs.replace(seen, screenshot=screenshot)
        played = msgspec.structs.replace(played, observation=seen)
        self.divergence = self._divergence(step, witnessed, played, self.divergence.what)
        self.by_step[-1] = step_result(self._done, self._of, step, played, "differs", self.divergence.what)
        return self.by_step[-1]

    def stop(self) -> None:
        """It was ended here: of what would have come after nothing is known."""
        if not self.whole:
            where = f"stopped after step {self._done} of {self._of}"
            self._unverified.append(f"{where}: what came after was not done again")

    @property
    def whole(self) -> bool:
        """Whether nothing was left to do."""
        return self._done == self._of

    @property
    def unverified(self) -> tuple[str, ...]:
        """What could not be verified, by name; at most ``UNVERIFIED_MAX`` of them."""
        return tuple(self._unverified)

    @property
    def verdict(self) -> Verdict:
        """What the comparison proves so far."""
        if self._unverified:
            return "unverified"
        if self.divergence is not None:
            return "diverged"
        return "equivalent" if self.masked else "exact-observed"

    def _equivalent(self, witnessed: Witnessed, played: Played) -> bool:
        """Whether two observations are equal where the masks do not cover them."""
        recorded, seen = witnessed.observation, played.observation
        if recorded is None or seen is None or (witnessed.outcome, witnessed.status) != (played.outcome, played.status):
            return False
        return equivalent(recorded, seen, self._masks, self._read_blob)

    def _cannot(self, step: Step, why: str) -> str:
        if len(self._unverified) < UNVERIFIED_MAX:
            self._unverified.append(f"{describe(step)}: {why}")
        return why

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


def _of_missed(missed: tuple[str, ...]) -> str:
    more = f", nor were {len(missed) - 1} more" if len(missed) > 1 else ""
    return f"a page asked {missed[0]}, which was not asked when it was recorded{more}"


def _difference(witnessed: Witnessed, played: Played, read_blob: ReadBlob) -> str:
    """What differs, as a clause; empty when nothing does."""
    if witnessed.outcome != played.outcome:
        return f"it was {witnessed.outcome} and is now {played.outcome}"
    if witnessed.status != played.status:
        return f"it was answered {witnessed.status} and is now answered {played.status}"
    recorded, seen = witnessed.observation, played.observation
    if recorded is None:
        return ""
    return "it was observed and is now not" if seen is None else difference(recorded, seen, read_blob)


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
