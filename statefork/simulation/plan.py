"""What one seed is about: how many environments, slots and agents, which of them do what, and what goes wrong.

Seeds differ on purpose: each leaves out some kinds of work and prefers others (a mixture of everything reaches fewer
corners than many lopsided mixtures), and some are without any trouble, so that strict rules hold there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from statefork.engine.settings import DrainPolicy, Settings

WEIGHTS: Mapping[str, int] = {
    "write": 8,
    "pair": 5,
    "fail": 1,
    "hang": 2,
    "stubborn": 1,
    "opaque": 1,
    "leave": 2,
    "observe": 1,
    "lease": 3,
    "nested": 3,
    "background": 2,
    "straggle": 2,
    "pin": 3,
    "judge": 3,
    "request": 4,
    "stale": 3,
    "site": 2,
    "message": 1,
    "snapshot": 4,
    "reset": 2,
    "restore": 3,
    "park": 2,
    "activate": 2,
    "recover": 1,
    "retire": 1,
    "create": 1,
    "name": 1,
    "fork": 3,
    "fork_past": 2,
    "bulk": 1,
    "clone": 1,
    "collect": 2,
    "prune": 3,
    "mark": 2,
    "keyed": 2,
    "many": 1,
}
"""Each kind of work and how often it comes, where a seed does not say otherwise."""

_LASTING = frozenset({"write", "pair", "create", "snapshot"})  # never left out: without them nothing happens


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of one run. ``trouble``: the probability that a call or a commit goes wrong, by life."""

    seed: int
    environments: int  # at most
    crowd: int  # environments that one bulk fork makes at the beginning, unbound
    slots: int  # 0: unlimited
    agents: int
    steps: int  # of each agent in each life
    lives: int  # engines that are opened one after the other; all but the last are killed
    stores: tuple[str, ...]
    trouble: tuple[float, ...]
    crash_within: tuple[int, ...]  # by life: the crash comes at one of so many boundaries
    lies: bool  # inventories omit, invent and repeat
    daemons: bool  # something writes into every bound store whenever it is not quiesced
    rival: bool  # at the end of a life somebody else writes into the journal
    hold_s: float
    then: str
    slot_wait_s: float
    weights: dict[str, int]

    @classmethod
    def of(
        cls,
        seed: int,
        *,
        environments: tuple[int, int] | None = None,
        steps: int | None = None,
        lives: int | None = None,
    ) -> Plan:
        """The plan of a seed; what is given replaces what the seed would have chosen."""
        chance = random.Random(f"plan {seed}")
        size = chance.choices(["small", "middle", "crowd"], [70, 24, 6])[0]
        most = chance.randint(*{"small": (3, 6), "middle": (6, 14), "crowd": (20, 50)}[size])
        most = chance.randint(*environments) if environments is not None else most
        count = chance.randint(1, 3)
        count = lives if lives is not None else count
        return cls(
            seed=seed,
            environments=most,
            crowd=chance.randint(most // 2, most - 2) if most >= 20 else 0,
            slots=0 if chance.random() < 0.3 else chance.randint(1, max(2, min(most // 2, 6))),
            agents=chance.randint(2, 4) if most < 15 else chance.randint(4, 6),
            steps=steps if steps is not None else chance.randint(6, 14),
            lives=count,
            stores=("db", "media") if chance.random() < 0.6 else ("db",),
            trouble=tuple(chance.choice([0.0, 0.0, 0.005, 0.02, 0.05]) for _ in range(count)),
            crash_within=tuple(chance.choice([60, 500, 2500]) for _ in range(count)),
            lies=chance.random() < 0.5,
            daemons=chance.random() < 0.5,
            rival=chance.random() < 0.3,
            hold_s=chance.choice([0.0, 0.0, 0.5, 20.0]),
            then=chance.choice(["abort", "revoke"]),
            slot_wait_s=chance.choice([0.5, 5.0, 60.0]),
            weights=_weights(chance),
        )

    @property
    def settings(self) -> Settings:
        """The engine's."""
        return Settings(
            drain=DrainPolicy(
                deadline_s=3.0,
                then="revoke" if self.then == "revoke" else "abort",
                join_s=2.0,
                hold_s=self.hold_s,
            ),
            drain_at_end=DrainPolicy(deadline_s=1.0, then="revoke", join_s=1.0),
            act_timeout_s=20.0,
            stage_s=20.0,
            seal_s=20.0,
            staging_requests_s=0.5,
            discard_s=5.0,
            max_slots={"page": self.slots} if self.slots else {},
            slot_wait_s=self.slot_wait_s,
            close_s=60.0,
            settle_s=3.0,
        )

    @property
    def contract(self) -> str:
        """Stores, a server over them, and a page that writes into the stores whenever it is loaded."""
        stores = "".join(
            f'[resources.{store}]\nadapter = "memory"\ninitial = {{ greeting = "hello from {store}" }}\n\n'
            for store in self.stores
        )
        needs = ", ".join(f'"{store}"' for store in self.stores)
        return (
            f'[contract]\nname = "simulated"\n\n{stores}'
            f'[resources.app]\nadapter = "memory"\ndurability = "derived"\ndepends_on = [{needs}]\n\n'
            '[resources.page]\nadapter = "memory"\ndepends_on = ["app"]\nvisits = "visits"\nslot = "page"\n'
        )


def _weights(chance: random.Random) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for kind, weight in WEIGHTS.items():
        if kind not in _LASTING and chance.random() < 0.3:
            continue
        chosen[kind] = weight * chance.choice([1, 1, 1, 3])
    return chosen
