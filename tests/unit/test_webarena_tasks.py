"""Tasks of WebArena's form: what is wrong with a file is told with its place, all of it, before anything runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from statefork.adapters.interfaces.webarena.errors import SiteMissing, TasksInvalid
from statefork.adapters.interfaces.webarena.evaluating import answer_of
from statefork.adapters.interfaces.webarena.page import cookies_for_doors
from statefork.adapters.interfaces.webarena.sites import NAMES, Sites, read_sites
from statefork.adapters.interfaces.webarena.tasks import load_tasks, packaged
from statefork.worlds.office.scripted import scripts

GOOD: dict[str, Any] = {
    "task_id": 7,
    "sites": ["shopping"],
    "intent": "Put a lamp into the basket.",
    "start_url": "__SHOPPING__",
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"exact_match": "done"},
        "reference_url": "__SHOPPING__/basket/",
        "url_note": "GOLD in PRED",
        "program_html": [{"url": "last", "locator": "", "required_contents": {"must_include": ["lamp"]}}],
    },
}
PICTURE = {"eval_image_url": "last", "eval_image_class": ".shown", "eval_fuzzy_image_match": "lamp.png"}


def changed(**values: Any) -> dict[str, Any]:
    """The good task with other values; a key is a path with ``__`` between its parts, ``...`` takes it away."""
    task = copy.deepcopy(GOOD)
    for path, value in values.items():
        *way, last = path.split("__")
        holder: Any = task
        for part in way:
            holder = holder[int(part) if part.isdigit() else part]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
    return task


def read(folder: Path, content: object) -> dict[str, Any]:
    file = folder / "tasks.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return load_tasks(file)


def test_one_task_or_many(tmp_path: Path) -> None:
    assert list(read(tmp_path, GOOD)) == ["7"]
    assert list(read(tmp_path, {"tasks": [GOOD]})) == ["7"]
    tasks = read(tmp_path, [GOOD, changed(task_id="other", image=None)])
    assert {name: task.package for name, task in tasks.items()} == {"7": "webarena", "other": "visualwebarena"}
    assert load_tasks(tmp_path) == tasks


WRONG = {
    "is no evaluator of webarena: string_match, url_match, program_html": changed(eval__eval_types=["taste"]),
    "tasks.json:2:2: task_id: must be a number or a text": changed(task_id=True),
    "intent: must be a text, and not empty": changed(intent=...),
    "sites: must be a list of texts, and not empty": changed(sites=[]),
    "start_url: __AMAZON__ is no site: SHOPPING": changed(start_url="__AMAZON__/"),
    "eval: must be an object that says how the task is judged": changed(eval=[]),
    "eval.reference_answers.fuzzy: is none of exact_match": changed(eval__reference_answers={"fuzzy": "x"}),
    "eval.reference_answers.must_include: must be a list": changed(eval__reference_answers={"must_include": "x"}),
    "eval.reference_answers: must be an object with one of": changed(eval__reference_answers=None),
    "eval.reference_url: must be a text, and not empty": changed(eval__reference_url=""),
    "'EXACT' is no rule of webarena": changed(eval__url_note="EXACT"),
    "eval.program_html: must be a list with at least one object": changed(eval__program_html=[]),
    "eval.program_html[0]: must be an object": changed(eval__program_html=["last"]),
    "eval.program_html[0].locator: must be empty (the whole page) or": changed(eval__program_html__0__locator="h1"),
    "eval.program_html[0].url: must be a text": changed(eval__program_html__0__url=...),
    "eval.page_image_query: must be a list": changed(eval__eval_types=["page_image_query"]),
    "needs eval_fuzzy_image_match (a picture) or eval_vqa": changed(
        eval__eval_types=["page_image_query"], eval__page_image_query=[{**PICTURE, "eval_fuzzy_image_match": None}]
    ),
    "eval_image_class: must be empty (all images) or a class": changed(
        eval__eval_types=["page_image_query"], eval__page_image_query=[{**PICTURE, "eval_image_class": "img"}]
    ),
    "there is no file lamp.png beside the tasks": changed(image="lamp.png"),
    "image: must be a text or a list of texts": changed(image=[1]),
    "a task is an object": [3],
    "is not JSON: Expecting": '{"task_id": 7,\n "sites": }',
    "has no tasks": [],
}


@pytest.mark.parametrize("told", WRONG)
def test_what_is_wrong_is_told_with_its_place(told: str, tmp_path: Path) -> None:
    with pytest.raises(TasksInvalid) as raised:
        read(tmp_path, WRONG[told])
    assert told in str(raised.value)
    assert str(tmp_path / "tasks.json") in str(raised.value)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TasksInvalid) as raised:
        read(tmp_path, [changed(intent=""), GOOD, changed(eval__eval_types=["taste"]), GOOD])
    lines = [str(problem) for problem in raised.value.problems]
    assert len(lines) == 3, lines
    assert "[0].intent" in lines[0]
    assert "[2].eval.eval_types[0]: 'taste'" in lines[1]
    assert "task 7 is also at" in lines[2]
    assert raised.value.facts["line"] > 1


@pytest.mark.parametrize(
    ("task", "needs"),
    [
        (GOOD, ()),
        (changed(eval__reference_answers={"fuzzy_match": ["x"]}), ("fuzzy_match",)),
        (changed(eval__reference_answers={"fuzzy_match": "N/A"}), ("fuzzy_match",)),
        (changed(eval__program_html__0__locator="func:llm_ua_match('a', 'b', 'c')"), ("llm_ua_match",)),
        (
            changed(
                eval__eval_types=["page_image_query"],
                eval__page_image_query=[{**PICTURE, "eval_vqa": [{"question": "?", "answer": "!"}]}],
            ),
            ("eval_vqa",),
        ),
    ],
)
def test_who_asks_a_model_is_known(task: dict[str, Any], needs: tuple[str, ...], tmp_path: Path) -> None:
    (found,) = read(tmp_path, task).values()
    assert found.needs_model == needs


def test_the_packaged_tasks_have_two_scripts_each_and_ask_no_model() -> None:
    tasks = packaged()
    assert len(tasks) == 30
    assert sum(task.package == "visualwebarena" for task in tasks.values()) == 5
    assert not [name for name, task in tasks.items() if task.needs_model]
    assert {(name, way) for name, ways in scripts().items() for way in ways} == {
        (name, way) for name in tasks for way in ("right", "wrong")
    }
    kinds = {kind for task in tasks.values() for kind in task.eval_types}
    assert kinds == {"string_match", "url_match", "program_html", "page_image_query"}


def test_sites_stand_for_variables() -> None:
    sites = Sites({"shop.example": "http://127.9.9.9:80"}, read_sites())
    variables = sites.variables()
    assert variables["SHOPPING"] == variables["WA_SHOPPING"] == variables["VWA_SHOPPING"] == "http://127.9.9.9:80"
    assert variables["SHOPPING_ADMIN"] == "http://127.9.9.9:80/dashboard"
    assert variables["MAP"] == "http://map.invalid"
    assert sites.named == ("SHOPPING", "SHOPPING_ADMIN")
    assert sites.filled("__SHOPPING__/basket/") == "http://127.9.9.9:80/basket/"
    assert sites.for_agent("__SHOPPING_ADMIN__/") == "http://shop.example/dashboard/"
    with pytest.raises(SiteMissing, match=r"nothing in this world stands for GITLAB; .* SHOPPING, SHOPPING_ADMIN"):
        sites.filled("__GITLAB__")
    assert sites.private("http://shop.example/a?b#c") == "http://127.9.9.9:80/a?b#c"
    assert sites.private("http://shop.example.org/") == "http://shop.example.org/"


def test_a_file_says_which_site_stands_for_which(tmp_path: Path) -> None:
    file = tmp_path / "webarena.toml"
    file.write_text('[sites]\nGITLAB = "code.example/git"\n')
    assert read_sites(file) == {"GITLAB": "code.example/git"}
    for text, told in {
        '[sites]\nAMAZON = "shop.example"\n': rf"sites.AMAZON: is none of {', '.join(NAMES)}",
        "[sites]\nMAP = 3\n": "sites.MAP: must be a host",
        "[site]\n": r"has no table \[sites\]",
        "[sites": "Expected",
    }.items():
        file.write_text(text)
        with pytest.raises(TasksInvalid, match=told):
            read_sites(file)
    with pytest.raises(TasksInvalid, match="No such file"):
        read_sites(tmp_path / "none.toml")


def test_cookies_follow_their_host_to_its_door() -> None:
    sites = Sites({"shop.example": "http://127.1.1.1:5", "wiki.example": "http://127.2.2.2:6"}, {})
    common = {"name": "n", "value": "v", "path": "/", "expires": -1, "httpOnly": True, "secure": True}
    found = cookies_for_doors(
        [{**common, "domain": "shop.example"}, {**common, "domain": ".example"}, {**common, "domain": "p.example"}],
        sites,
    )
    assert [(cookie["domain"], cookie["secure"]) for cookie in found] == [
        ("127.1.1.1", False),
        ("127.1.1.1", False),
        ("127.2.2.2", False),
    ]


@pytest.mark.parametrize(
    ("trajectory", "answer"),
    [("yes", "yes"), ([], ""), ([{"action": 1}, {"answer": "no"}], "no"), ([{"answer": "no"}, {"action": 1}], "")],
)
def test_the_answer_is_the_last_word(trajectory: Any, answer: str) -> None:
    assert answer_of(trajectory) == answer
