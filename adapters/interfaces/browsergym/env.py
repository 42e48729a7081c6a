"""BrowserGym's environment on a page that is lent: its observations, actions and tasks are its own code, unmodified.

What BrowserGym does at each reset, launching a browser for the page and another one for the chat, is not done: the page
is that of an environment, and the chat is its messages. A step is one lease: the action, ``validate`` and the
observation see one generation. Nobody can do BrowserGym's actions again from the journal, since they are programs; so a
generation is published after each, and every ``NAME#k`` can be gone back to.
"""

from __future__ import annotations

import copy
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from browsergym.core.chat import Chat  # type: ignore[import-not-found]  # installed beside, see the how-to
from browsergym.core.env import BrowserEnv  # type: ignore[import-not-found]  # the same

from statefork.adapters.interfaces.gym.engines import default_state, sit_here
from statefork.adapters.interfaces.gym.seats import LocalSeat, take
from statefork.adapters.interfaces.lent_page import front, mean_by_test_id, rest
from statefork.adapters.interfaces.sync import Engine, Environment, Evaluation
from statefork.engine.errors import EnvironmentFrozen, InvalidAction, LeaseRevoked, ResourceFailed, StaleGeneration
from statefork.journal.errors import StateforkError

BID = "bid"
STEP_SECONDS_MAX = 120.0
"""How long a step may take until the environment is given up at its last generation."""
ACTION_CHARS_MAX = 1_000_000
REST_SECONDS_MAX = 5.0  # as a browser's settle_s in a contract
_TIMEOUT_MS_USUAL = 30_000  # Playwright's own
_TAKEN_AWAY = (LeaseRevoked, ResourceFailed, EnvironmentFrozen, StaleGeneration)
_UNHEARD = ("slow_mo", "resizeable_window", "record_video_dir", "pw_chromium_kwargs", "pw_context_kwargs")

Step = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]


class _Messages(Chat):  # type: ignore[misc]  # of a package without types
    """A chat that nobody sees."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages

    def add_message(self, role: str, msg: str) -> None:
        """Note it, as BrowserGym's chat does."""
        if role not in ("user", "user_image", "assistant", "info", "infeasible"):
            raise ValueError(f"Invalid role: {role}")
        if role != "info":
            self.messages.append({"role": role, "timestamp": time.time(), "message": msg})

    def close(self) -> None:
        """There is no browser to close."""


class _Kept(NamedTuple):
    """What a moment of an episode has that is not in the world."""

    task: Any
    goal_object: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    task_info: dict[str, Any]


class StateforkBrowserEnv(BrowserEnv):  # type: ignore[misc]  # of a package without types
    """BrowserGym's ``BrowserEnv`` over a contract. ``task_entrypoint`` and ``task_kwargs`` and all else are as there.

    ``state``, ``name``, ``slots`` and ``engine`` are as of :class:`statefork.gym.StateforkEnv`. Nothing is opened
    before the first ``reset``.
    """

    task: Any  # these four are None in the package, where it has none
    chat: Any
    context: Any
    page: Any

    def __init__(
        self,
        task_entrypoint: Callable[..., Any],
        task_kwargs: Mapping[str, Any] | None = None,
        *,
        contract: str | Path,
        state: str | Path | None = None,
        name: str | None = None,
        slots: int | None = None,
        engine: Engine | None = None,
        step_seconds_max: float = STEP_SECONDS_MAX,
        **arguments: Any,
    ) -> None:
        super().__init__(task_entrypoint, dict(task_kwargs or {}), **arguments)
        if self.wait_for_user_message or not self.headless:
            raise ValueError("there is no window and no chat box here: headless=True, wait_for_user_message=False")
        if unheard := [one for one in _UNHEARD if arguments.get(one)]:
            warnings.warn(f"the browser is shared and runs already: {', '.join(unheard)} not heeded", stacklevel=2)
        self._place = (contract, Path(state) if state is not None else default_state(contract), slots, name)
        self._engine = engine
        self._arguments = {**arguments, "contract": contract, "state": state, "slots": slots, "engine": engine}
        self._step_seconds_max = step_seconds_max
        self._seat: LocalSeat | None = None
        self._moments: dict[str, _Kept] = {}
        self._last: dict[str, Any] = {}
        self._task_info: dict[str, Any] = {}

    # --- Gymnasium's interface ----------------------------------------------------------------------------------

    def reset(
        self, seed: int | None = None, *, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode: at the origin, or where ``options={"at": ref}`` says.

        At a moment of one of its own episodes the task and the chat go on as they were then; elsewhere the task is set
        up there.
        """
        gymnasium.Env.reset(self, seed=seed)
        at = (options or {}).get("at")
        kept = self._moments.get(str(at)) if at is not None else None
        if kept is None:
            self._moments = {ref: moment for ref, moment in self._moments.items() if "#" not in ref}
            if self.task is not None:
                self.task.teardown()
        self.task = None
        self._sat().go_back(None if at is None else str(at))
        self.last_action = self.last_action_error = ""
        self.infeasible_message_received = False
        self.task = kept.task if kept is not None else self.task_entrypoint(seed=seed, **self.task_kwargs)
        with self._lent():
            self._go_on(kept) if kept is not None else self._set_up()
            self._wait_dom_loaded()
            self._active_page_check()
            self.start_time = time.time()
            self._last = self._get_obs()
        return self._last, {"task_info": self._task_info, **self._noted()}

    def step(self, action: str) -> Step:
        """BrowserGym's step, under one lease. What an action does wrong is told in ``last_action_error``.

        The episode is truncated where the environment was taken away in the middle of it.
        """
        if not isinstance(action, str) or len(action) > ACTION_CHARS_MAX:
            error = InvalidAction(f"an action is a text of at most {ACTION_CHARS_MAX} characters")
            return self._over(str(action)[:100], error, truncated=False)
        hung = threading.Timer(self._step_seconds_max, self._give_up)
        hung.daemon = True
        hung.start()
        try:
            with self._lent():
                result: Step = super().step(action)
        except _TAKEN_AWAY as error:
            return self._over(action, error, truncated=True)
        finally:
            hung.cancel()
        self._last = result[0]
        return (*result[:4], {**result[4], **self._noted()})

    def close(self) -> None:
        """End the task and give the environment back. Idempotent."""
        seat, self._seat = self._seat, None
        try:
            if self.task is not None:
                self.task.teardown()
        finally:
            self.task = self.chat = self.context = self.page = None
            if seat is not None:
                seat.leave()

    # --- what is more here --------------------------------------------------------------------------------------

    @property
    def environment(self) -> Environment:
        """The environment of :mod:`statefork.sync` behind it."""
        return self._sat().env

    def snapshot(self) -> str:
        """The ref of the present, which is published."""
        ref = self._sat().snapshot()
        self._moments[ref] = self._keep()
        return ref

    def fork(self, n: int = 1) -> list[StateforkBrowserEnv]:
        """``n`` environments that continue from here, with task, chat and page. They can ``step`` at once."""
        children = []
        for seat in self._sat().fork(n):
            arguments = self._arguments | {"step_seconds_max": self._step_seconds_max}
            child = StateforkBrowserEnv(self.task_entrypoint, self.task_kwargs, **arguments)
            seat.env.keep_snapshots("every action")
            child.spec, child._seat, child._last = self.spec, seat, self._last
            child._moments = dict(self._moments)
            child.last_action, child.last_action_error = self.last_action, self.last_action_error
            child.infeasible_message_received, child.start_time = self.infeasible_message_received, self.start_time
            child._go_on(self._keep())
            children.append(child)
        return children

    # --- in the place of what BrowserGym does with a browser of its own -------------------------------------------

    def _active_page_check(self) -> None:
        """The environment knows which tab is the active one, and always has one."""
        self.page = front(self.page)
        self._fit()

    def _wait_dom_loaded(self) -> None:
        """Where BrowserGym waits for documents, what they have asked for is awaited, too."""
        super()._wait_dom_loaded()
        rest(front(self.page), REST_SECONDS_MAX)

    def _task_validate(self) -> tuple[float, bool, str, dict[str, Any]]:
        """The task's verdict is one of the journal's: of the generation that the action acted on.

        Meanwhile the task finds in ``self.statefork`` what an evaluator may read, the databases too.
        """
        verdict: list[tuple[float, bool, str, dict[str, Any]]] = []

        def check(seen: Evaluation) -> tuple[float, dict[str, Any]]:
            self.task.statefork = seen
            try:
                verdict.append(super(StateforkBrowserEnv, self)._task_validate())
            finally:
                self.task.statefork = None
            return float(verdict[-1][0]), {"done": bool(verdict[-1][1])}

        self._sat().env.evaluate(check, name=type(self.task).__name__)
        return verdict[-1]

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """The page, lent, in the places where BrowserGym keeps its own. Bids are its test ids."""
        with self._sat().env.page() as page:
            mean_by_test_id(page, BID)
            self.page, self.context = page, page.context
            if self.task is not None:
                self.context.set_default_timeout(self.timeout or self.task.timeout or _TIMEOUT_MS_USUAL)
            self._fit()
            try:
                yield
            finally:
                with suppress(StateforkError):
                    self.context.set_default_timeout(_TIMEOUT_MS_USUAL)

    def _fit(self) -> None:
        wanted = self.viewport or getattr(self.task, "viewport", None)
        if wanted and self.page.viewport_size != wanted:
            self.page.set_viewport_size(wanted)

    def _set_up(self) -> None:
        """What BrowserGym's reset does once it has a page."""
        goal, self._task_info = self.task.setup(page=self.page)
        self.goal_object = [{"type": "text", "text": goal}] if isinstance(goal, str) else list(goal or [])
        self.chat = _Messages([])
        hello = "Hi! I am your UI assistant, I can perform web tasks for you. What can I help you with?"
        self.chat.add_message(role="assistant", msg=hello)
        for message in self.goal_object:
            if message["type"] == "text":
                self.chat.add_message(role="user", msg=message["text"])
            elif message["type"] == "image_url":
                image = message["image_url"]
                self.chat.add_message(role="user_image", msg=image["url"] if isinstance(image, dict) else image)
            else:
                raise ValueError(f"Unknown message type {message['type']!r} in the task goal.")

    def _go_on(self, kept: _Kept) -> None:
        self.task, self.goal_object, self._task_info = kept.task, copy.deepcopy(kept.goal_object), kept.task_info
        self.chat = _Messages(copy.deepcopy(kept.messages))

    def _keep(self) -> _Kept:
        task = copy.copy(self.task)
        return _Kept(task, copy.deepcopy(self.goal_object), copy.deepcopy(self.chat.messages), self._task_info)

    def _noted(self) -> dict[str, Any]:
        """What the info tells besides; and the chat and the task of this moment are kept under its name."""
        env = self._sat().env
        at = f"{env.name}#{env.capsule.actions}"
        self._moments[at] = self._keep()
        return {"env": env.name, "at": at}

    def _over(self, action: str, error: StateforkError, *, truncated: bool) -> Step:
        """Nothing more was seen: the last observation, and why."""
        self.last_action, self.last_action_error = action, f"{type(error).__name__}: {error.message}"
        told = {"last_action": action, "last_action_error": self.last_action_error}
        self._last = {**self._last, **told, "chat_messages": tuple(copy.deepcopy(self.chat.messages))}
        info = {"env": self._sat().name, "error": {"code": error.code, "message": error.message, "hint": error.hint}}
        return self._last, 0.0, False, truncated, {"task_info": {}, **info}

    def _give_up(self) -> None:
        """The step hangs: its lease is revoked, and the last generation serves again."""
        with suppress(StateforkError):
            self._sat().env.recover()

    def _sat(self) -> LocalSeat:
        if self._seat is None:
            contract, state, slots, name = self._place
            seat = take(self._engine, name) if self._engine is not None else sit_here(contract, state, slots, name)
            self._seat = seat
            seat.env.keep_snapshots("every action")
        return self._seat
