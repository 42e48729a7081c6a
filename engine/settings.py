"""What an engine may be told, and the real clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from statefork.journal.values import Value


class DrainPolicy(Value, frozen=True, kw_only=True):
    """How long a transition waits for what is under way, and what it does then.

    ``abort``: give up and name the holders; the old generation serves on. ``revoke``: cancel the holders, and wait
    ``join_s`` seconds until they have really ended.

    ``hold_s``: who asks for a root lease meanwhile waits that long for the generation that comes, instead of being
    refused at once.
    """

    deadline_s: float = 10.0
    then: Literal["abort", "revoke"] = "abort"
    join_s: float = 5.0
    hold_s: float = 0.0


class Settings(Value, frozen=True, kw_only=True):
    """Deadlines and limits of an engine. All times are seconds."""

    drain: DrainPolicy = DrainPolicy()
    drain_at_end: DrainPolicy = DrainPolicy(deadline_s=2.0, then="revoke")  # of retire, and of parking at close
    act_timeout_s: float = 120.0  # of an action that was given no deadline
    act_join_s: float = 5.0  # how long an action or a look may take to end once it was cancelled
    stage_s: float = 120.0  # staging of a successor: branch, bind and probe of every resource
    seal_s: float = 60.0  # quiesce and seal of every resource
    staging_requests_s: float = 5.0  # how long requests that staging caused may go on once everything is bound
    discard_s: float = 30.0  # closing what is no longer needed; what takes longer is left to the collector
    max_slots: Mapping[str, int] = {}  # by kind of slot ("*": every other): how many environments are bound at once
    staging_slots: int = 1  # successors that may stand beside what they replace, where slots are limited
    slot_wait_s: float = 60.0  # how long an activation waits for a slot
    close_s: float = 60.0  # parking everything when the engine closes
    settle_s: float = 30.0  # reading back after an append whose reply was lost
    held_names_max: int = 256  # names that one transition records of what it found open
    children_max: int = 1000  # environments of one bulk command: children of a fork, creates, resets
    leases_max: int = 10_000  # live leases of one environment, children included
    waiting_max: int = 1_000  # commands that wait for their turn on one environment; callers that a freeze holds back
    slot_queue_max: int = 10_000  # activations that wait for a slot
    checkpoint_events: int = 20_000  # after so many events the fold is kept, so that opening is quick; 0: never
    parallel_max: int = 16  # environments that opening, closing and forking work on at once


class SystemClock(msgspec.Struct, frozen=True):
    """The machine's clock."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()
