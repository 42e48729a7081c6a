"""Run within Inspect's own environment by ``test_inspect.py``: what it found goes to the standard output, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import inspect_ai
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import sandbox

from statefork.adapters.interfaces.inspecting.sandbox import StateforkConfig

BINARY = bytes(range(256))


def model(*commands: str) -> Any:
    """One that gives these commands to its tool, and then ends."""
    calls = [ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}) for command in commands]
    outputs = [*calls, ModelOutput.from_content("mockllm/model", "done")]
    for output in outputs:  # else its words are counted by an encoder that is fetched from elsewhere
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return get_model("mockllm/model", custom_outputs=outputs)


async def raised(work: Any) -> str:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - its kind is what is asked for
        return type(error).__name__
    return "nothing"


@solver
def tries() -> Any:
    """Everything that a sandbox has to do."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        box = sandbox()
        found: dict[str, Any] = {}
        await box.write_file("deep/er/file.bin", BINARY)
        await box.write_file("text.txt", "one\r\ntwo\n")
        found["binary"] = await box.read_file("deep/er/file.bin", text=False) == BINARY
        found["text"] = await box.read_file("text.txt")
        found["sample"] = await box.read_file("from-the-sample.txt")
        ran = await box.exec(["sh", "-c", "cat; echo $COLOUR; basename $PWD; exit 4"], "in", "deep", {"COLOUR": "red"})
        found["ran"] = [ran.success, ran.returncode, ran.stdout]
        found["elsewhere"] = (await box.exec(["pwd"], cwd="/usr/bin")).stdout
        found["missing program"] = (await box.exec(["no-such-program"])).returncode
        found["missing file"] = await raised(box.read_file("nowhere"))
        found["directory"] = await raised(box.read_file("deep"))
        found["over a directory"] = await raised(box.write_file("deep", "x"))
        found["no text"] = await raised(box.read_file("deep/er/file.bin"))
        found["slow"] = await raised(box.exec(["sleep", "600"], timeout=1))
        found["user"] = await raised(box.exec(["true"], user="somebody"))
        found["siblings"] = (await box.exec(["ls"])).stdout
        state.metadata["found"] = found
        return state

    return solve


@scorer(metrics=[accuracy()])
def nothing() -> Any:
    async def score(state: TaskState, target: Any) -> Score:
        return Score(value=1)

    return score


def logged(logs: list[Any]) -> Any:
    (log,) = logs
    if log.status != "success":
        sys.exit(log.error.message)
    return log


def main(kind: str) -> None:
    """Run one evaluation."""
    if kind == "example":
        from inspect_task import answers  # it lies beside

        log = logged(
            inspect_ai.eval(answers(), model=model("echo 'print(6 * 7)' > answer.py; cat notes.txt"), display="none")
        )
        print(json.dumps({"score": log.results.scores[0].metrics["accuracy"].value}))
        return
    samples = [Sample(input=f"sample {number}", files={"from-the-sample.txt": f"file {number}"}) for number in range(4)]
    box = StateforkConfig(contract="box.toml")
    task = Task(samples, solver=tries(), scorer=nothing(), sandbox=("statefork", box))
    log = logged(inspect_ai.eval(task, model=model(), display="none", max_samples=4))
    print(json.dumps([sample.metadata["found"] for sample in log.samples]))


if __name__ == "__main__":
    main(sys.argv[1])
