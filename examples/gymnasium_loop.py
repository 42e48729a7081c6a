"""A loop over eight environments of a web shop, on one server and one Chromium; then one of them is forked."""

import gymnasium

import statefork.gym
from statefork.actions import Click


def one_in_basket(seen: statefork.Evaluation) -> float:
    (row,) = seen.query("db", "SELECT sum(quantity) AS pieces FROM basket_line")
    return float(row["pieces"] == 1)


def policy(text: str) -> Click | str:
    return Click(role="button", name="Add to basket", nth=0) if "Add to basket" in text else '{"type": "back"}'


envs = gymnasium.make_vec("statefork/shop-v0", num_envs=8, judge=one_in_basket)
obs, _ = envs.reset(seed=1)
obs, rewards, terminated, truncated, info = envs.step([policy(text) for text in obs["text"]])
print(rewards, info["at"][0])
envs.close()

env = gymnasium.make("statefork/shop-v0", judge=one_in_basket, max_episode_steps=20)
obs, info = env.reset()
left, right = env.unwrapped.fork(2)
print(left.step(policy(obs["text"]))[1], right.step("")[1])
for one in (left, right, env):
    one.close()
