"""Inspect: a model works in a terminal of statefork's; the scorer forks the sandbox and tries what was made."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import sandbox

from statefork.adapters.interfaces.inspecting.sandbox import StateforkConfig, StateforkSandbox


@scorer(metrics=[accuracy()])
def prints_the_target():
    async def score(state, target):
        (child,) = await sandbox().as_type(StateforkSandbox).fork()  # whatever the trial does, the sample's own stays
        tried = await child.exec(["python3", "answer.py"], timeout=10)
        child.environment.retire()
        return Score(value=tried.stdout.strip() == target.text, answer=tried.stdout)

    return score


@task
def answers():
    samples = [Sample(input="Write answer.py, which prints 6 times 7.", target="42", files={"notes.txt": "be brief"})]
    box = StateforkConfig(contract="box.toml", keep=True)
    solver = [use_tools(bash()), generate()]
    return Task(samples, solver=solver, scorer=prints_the_target(), sandbox=("statefork", box))
