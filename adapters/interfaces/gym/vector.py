"""Several environments of one engine, stepped at the same time: what ``gymnasium.make_vec`` makes.

Each has a thread of its own while it is reset or stepped; what lasts is in the browser and in the servers, so threads
are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers import TimeLimit
from numpy.typing import NDArray

from statefork.adapters.interfaces.gym.env import StateforkEnv

T = TypeVar("T")
Steps = tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class StateforkVectorEnv(VectorEnv[dict[str, Any], Any, NDArray[Any]]):
    """``num_envs`` environments of a contract; the other arguments are those of each of them.

    One that has ended is reset by the next ``step``, as in Gymnasium's own (``AutoresetMode.NEXT_STEP``).
    """

    metadata = {**StateforkEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 -- of Gymnasium

    def __init__(
        self, contract: str | Path, num_envs: int = 1, *, max_episode_steps: int | None = None, **arguments: Any
    ) -> None:
        singles = [StateforkEnv(contract, **arguments) for _ in range(num_envs)]
        self.envs: list[gymnasium.Env[dict[str, Any], Any]] = [
            one if max_episode_steps is None else TimeLimit(one, max_episode_steps) for one in singles
        ]
        self.num_envs = num_envs
        self.render_mode = singles[0].render_mode
        self.single_observation_space = singles[0].observation_space
        self.single_action_space = singles[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended = [False] * num_envs
        self._pool = ThreadPoolExecutor(num_envs, thread_name_prefix="gym")

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """All at the same time. ``options={"reset_mask": …}`` names those to reset, as in Gymnasium's own."""
        seeds = (
            seed if isinstance(seed, Sequence) else [None if seed is None else seed + i for i in range(self.num_envs)]
        )
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        chosen = [True] * self.num_envs if mask is None else [bool(one) for one in mask]

        def begin(i: int) -> tuple[dict[str, Any], dict[str, Any]]:
            if not chosen[i]:
                single = self.envs[i].unwrapped
                assert isinstance(single, StateforkEnv)
                return single.look()
            return self.envs[i].reset(seed=seeds[i], options=options)

        begun = self._each(begin)
        self._ended = [ended and not picked for ended, picked in zip(self._ended, chosen, strict=True)]
        return self._batched([obs for obs, _ in begun]), self._infos([info for _, info in begun])

    def step(self, actions: Any) -> Steps:
        """All at the same time; each sees its own world."""
        given = list(iterate(self.action_space, actions))

        def go(i: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            if self._ended[i]:
                obs, info = self.envs[i].reset()
                return obs, 0.0, False, False, info
            obs, reward, terminated, truncated, info = self.envs[i].step(given[i])
            return obs, float(reward), terminated, truncated, info

        gone = self._each(go)
        self._ended = [terminated or truncated for _, _, terminated, truncated, _ in gone]
        return (
            self._batched([one[0] for one in gone]),
            np.array([one[1] for one in gone], dtype=np.float64),
            np.array([one[2] for one in gone], dtype=np.bool_),
            np.array([one[3] for one in gone], dtype=np.bool_),
            self._infos([one[4] for one in gone]),
        )

    def _each(self, work: Callable[[int], T]) -> list[T]:
        """Do it for all, wait for all, and then raise the first error."""
        if self.closed:
            raise ClosedEnvironmentError("the environments were closed: make new ones")
        asked = [self._pool.submit(work, i) for i in range(self.num_envs)]
        errors = [error for one in asked if (error := one.exception()) is not None]
        if errors:
            raise errors[0]
        return [one.result() for one in asked]

    def _batched(self, each: list[dict[str, Any]]) -> dict[str, Any]:
        empty: Any = create_empty_array(self.single_observation_space, n=self.num_envs)
        found: Any = concatenate(self.single_observation_space, each, empty)
        return dict(found)

    def _infos(self, each: list[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, info in enumerate(each):
            infos = self._add_info(infos, info, i)
        return infos

    def render(self) -> tuple[Any, ...] | None:
        """The pages as they were seen last."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Give all environments back. What one of them raises does not keep the others."""
        try:
            self._each(lambda i: self.envs[i].close())
        finally:
            self._pool.shutdown()
