"""Inside the server process: chance and time of the running code, as they were given to its request.

Code in a request reads the clock and draws random numbers that the request's environment has; every other thread has
the real ones. ``install`` comes before the application is imported, so that names which it takes from ``random`` or
``time`` are the bound ones already.

Bound: ``time.time``, ``datetime.now`` and their kin, ``uuid``, ``os.urandom``, ``secrets``, the functions of the module
``random``, and ``random.Random()`` without a seed. Not bound: monotonic clocks and sleeping, what extension modules
draw by themselves (OpenSSL, numpy), other processes, and the databases' own clocks.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from contextvars import ContextVar
from typing import Any

import _time_machine  # type: ignore[import-not-found]  # compiled, and without annotations
import time_machine

from statefork.engine.tickets import heard_conditions

_ENTROPY_BYTES = 32
_NS = 1_000_000_000

_real_urandom = os.urandom
_real_seed = random.Random.seed

_chance: ContextVar[random.Random | None] = ContextVar("statefork_chance", default=None)
_clock: ContextVar[tuple[int, bool] | None] = ContextVar("statefork_clock", default=None)
"""Nanoseconds: what the clock is shifted by; or where it stands, with True. None: it is the real one."""


def _real_time_ns() -> int:
    """The machine's clock; ``time.time_ns`` itself is patched, wherever it was taken."""
    return int(_time_machine.original_time_ns())


class Asked:
    """How often each request was made under the present seed: equal requests draw different numbers."""

    def __init__(self) -> None:
        self._seed = ""
        self._counts: Counter[str] = Counter()

    def seed_of(self, seed: str, request: str) -> int:
        """What a request draws from: it does not depend on the order of others that run beside it."""
        if seed != self._seed:
            self._seed, self._counts = seed, Counter()
        self._counts[request] += 1
        text = f"{seed}|{request}|{self._counts[request]}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest())


def enter(told: str, request: str, asked: Asked, *, stands: bool) -> None:
    """From here on this context has the chance and time that the gateway has told. Raises ValueError."""
    seed, clock = heard_conditions(told)
    if seed:
        _chance.set(random.Random(asked.seed_of(seed, request)))
    if clock:
        ns = round(clock * _NS)
        _clock.set((ns, True) if stands else (ns - _real_time_ns(), False))


def drawn_seed() -> str:
    """For another process that works for this request: drawn from the chance that was given; empty if none was."""
    given = _chance.get()
    return "" if given is None else given.randbytes(_ENTROPY_BYTES).hex()


class _Clock(time_machine.Traveller):
    """The traveller that is asked by all that time-machine has patched: each context has its own time."""

    def time_ns(self) -> int:
        given = _clock.get()
        if given is None:
            return _real_time_ns()
        ns, stands = given
        return ns if stands else _real_time_ns() + ns


def _urandom(size: int, /) -> bytes:
    given = _chance.get()
    return _real_urandom(size) if given is None else given.randbytes(size)


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    given = _chance.get() if a is None else None
    _real_seed(self, a if given is None else given.getrandbits(_ENTROPY_BYTES * 8), version)


class _Module(random.Random):
    """The generator behind the functions of the module ``random``."""

    def random(self) -> float:
        given = _chance.get()
        return super().random() if given is None else given.random()

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        given = _chance.get()  # it draws two and keeps one for the next call, which must not be another context's
        return super().gauss(mu, sigma) if given is None else given.gauss(mu, sigma)

    def getrandbits(self, k: int, /) -> int:
        given = _chance.get()
        return super().getrandbits(k) if given is None else given.getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        given = _chance.get()
        return super().seed(a, version) if given is None else given.seed(a, version)

    def getstate(self) -> Any:
        given = _chance.get()
        return super().getstate() if given is None else given.getstate()

    def setstate(self, state: Any) -> None:
        given = _chance.get()
        return super().setstate(state) if given is None else given.setstate(state)


def install() -> None:
    """Bind the process's clocks and generators to contexts. Called once, before the application is imported."""
    module: Any = random
    own = module._inst
    own.__class__ = _Module
    for name in dir(own):
        if getattr(getattr(module, name, None), "__self__", None) is own:
            setattr(module, name, getattr(own, name))
    module._urandom = _urandom
    random.Random.seed = _seed  # type: ignore[method-assign]  # a patch
    os.urandom = _urandom
    travel = time_machine.travel(0, tick=True)
    travel.start()
    time_machine.traveller_stack[-1] = _Clock(0, None, tick=True)
