"""A task and an agent of BrowserGym's kind, on a web shop that is neither started nor filled for each episode."""

import re

import gymnasium
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.task import AbstractBrowserTask
from browsergym.utils.obs import flatten_axtree_to_str

from statefork.browsergym import register_task


class Basket(AbstractBrowserTask):
    def setup(self, page):
        page.goto("http://shop.example/catalogue/")
        return "Put one thing into the basket.", {}

    def validate(self, page, chat_messages):
        done = page.get_by_text("has been added to your basket").count() > 0
        return float(done), done, "", {}


register_task("shop.basket", Basket, contract="shop")
env = gymnasium.make("browsergym/shop.basket", action_mapping=HighLevelActionSet().to_python_code)
obs, info = env.reset(seed=1)
bid = re.search(r"\[(\w+)\] button 'Add to basket'", flatten_axtree_to_str(obs["axtree_object"]))[1]
obs, reward, terminated, truncated, info = env.step(f"click('{bid}')")
print(obs["goal"], reward, terminated, info["at"])
env.close()
