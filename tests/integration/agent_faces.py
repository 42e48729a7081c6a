"""Two ways in which agents' code drives the shop, Gymnasium's and BrowserGym's: what both can do, and nothing else."""

from __future__ import annotations

import re
from typing import Any, Protocol

from statefork import sync
from statefork.actions import Click, Goto, Wait

SHOP = "http://shop.example"
ADD = "Add to basket"


def pieces(seen: Any) -> float:
    """How many pieces lie in the basket."""
    (row,) = seen.query("db", "SELECT coalesce(sum(quantity), 0) AS pieces FROM basket_line")
    return float(row["pieces"])


class Face(Protocol):
    """What an agent's code does with an environment."""

    hung: str
    """The code under which a hung action is told."""

    def make(self, engine: sync.Engine, **arguments: Any) -> Any:
        """An environment of the shop. ``seconds_max``: of a step."""
        ...

    def goto(self, env: Any, path: str) -> Any:
        """A step: open a page of the shop."""
        ...

    def add(self, env: Any) -> Any:
        """A step: put the first product of the page into the basket."""
        ...

    def hang(self, env: Any) -> Any:
        """A step that never ends by itself."""
        ...

    def bad(self) -> list[Any]:
        """Actions that are none: unknown, malformed, of a wrong kind, oversized."""
        ...

    def text(self, obs: dict[str, Any]) -> str:
        """What the agent reads."""
        ...


class Gymnasium:
    """Actions as data, observations as texts and pixels."""

    hung = "action_timeout"

    def make(self, engine: sync.Engine, *, seconds_max: float | None = None) -> Any:
        import gymnasium

        import statefork.gym  # noqa: F401 -- it registers

        made = gymnasium.make(
            "statefork/shop-v0", engine=engine, judge=lambda seen: (pieces(seen), False), act_timeout_s=seconds_max
        )
        return made.unwrapped

    def goto(self, env: Any, path: str) -> Any:
        return env.step(Goto(SHOP + path))

    def add(self, env: Any) -> Any:
        return env.step(Click(role="button", name=ADD, nth=0))

    def hang(self, env: Any) -> Any:
        return env.step(Wait(selector="#never", timeout_ms=600_000))

    def bad(self) -> list[Any]:
        known = '{"type": "goto", "url": "http://shop.example/"'
        return [
            '{"type": "jump"}',
            {"type": "click"},
            known,
            "[1, 2]",
            "[" * 100_000,
            known + ', "x": ' + "[" * 40 + "]" * 40 + "}",
            {"type": "goto", "url": object()},
            {"type": "fill", "label": "Search", "value": "x" * 5_000_000},
            '{"type": "goto", "url": "file:///etc/passwd"}',
            None,
            7,
        ]

    def text(self, obs: dict[str, Any]) -> str:
        return str(obs["text"])


class BrowserGym:
    """BrowserGym's high-level actions on its marks, observations as its tools flatten them."""

    hung = "lease_revoked"

    def make(self, engine: sync.Engine, *, seconds_max: float | None = None) -> Any:
        from browsergym.core.action.highlevel import HighLevelActionSet
        from browsergym.core.task import AbstractBrowserTask

        from statefork.browsergym import StateforkBrowserEnv

        class Shopping(AbstractBrowserTask):  # type: ignore[misc]  # of a package without types
            def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
                page.goto(f"{SHOP}/catalogue/")
                return "Fill the basket.", {}

            def validate(self, page: Any, chat_messages: list[Any]) -> tuple[float, bool, str, dict[str, Any]]:
                seen = getattr(self, "statefork", None)
                return pieces(seen), False, "", {}

        actions = HighLevelActionSet(subsets=["chat", "bid", "nav", "tab", "infeas"], multiaction=False)

        def mapping(action: str) -> str:
            return "page.evaluate('() => { for (;;); }')" if action == "hang" else actions.to_python_code(action)

        return StateforkBrowserEnv(
            Shopping,
            contract="shop",
            engine=engine,
            action_mapping=mapping,
            pre_observation_delay=0.05,
            step_seconds_max=seconds_max or 60.0,
            timeout=20_000,
        )

    def goto(self, env: Any, path: str) -> Any:
        return env.step(f"goto('{SHOP}{path}')")

    def add(self, env: Any) -> Any:
        found = re.search(rf"\[(\w+)\] button '{ADD}'", self.text(env._last))
        assert found, self.text(env._last)
        result = env.step(f"click('{found[1]}')")
        if "Timeout 500ms" in result[0]["last_action_error"]:  # BrowserGym's own bound: the machine was busy
            return env.step("noop(1000)")
        return result

    def hang(self, env: Any) -> Any:
        return env.step("hang")

    def bad(self) -> list[Any]:
        return [
            "jump(1)",
            "click('nobody')",
            "click(",
            "noop('x', 'y', 'z')",
            "",
            "[" * 5_000,
            "fill('11', '" + "x" * 2_000_000 + "')",
            None,
            7,
        ]

    def text(self, obs: dict[str, Any]) -> str:
        from browsergym.utils.obs import flatten_axtree_to_str

        flat: str = flatten_axtree_to_str(obs["axtree_object"], extra_properties=obs["extra_element_properties"])
        return flat


FACES: dict[str, type[Face]] = {"gymnasium": Gymnasium, "browsergym": BrowserGym}
