"""Tasks of WebArena's and VisualWebArena's form: read, and checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from statefork.adapters.interfaces.webarena.errors import TasksInvalid
from statefork.adapters.interfaces.webarena.sites import NAMES, PLACEHOLDER
from statefork.engine.places import KeyPath, Place, Places, Problem, json_places

Package = Literal["webarena", "visualwebarena"]

EVAL_TYPES: dict[Package, tuple[str, ...]] = {
    "webarena": ("string_match", "url_match", "program_html"),
    "visualwebarena": ("string_match", "url_match", "program_html", "page_image_query"),
}
ANSWERS: dict[Package, tuple[str, ...]] = {
    "webarena": ("exact_match", "must_include", "fuzzy_match"),
    "visualwebarena": ("exact_match", "must_include", "must_exclude", "one_of", "required_values", "fuzzy_match"),
}
CONTENTS: dict[Package, tuple[str, ...]] = {
    "webarena": ("exact_match", "must_include"),
    "visualwebarena": ("exact_match", "must_include", "must_exclude", "required_values", "fuzzy_match"),
}
URL_NOTES: dict[Package, tuple[str, ...]] = {
    "webarena": ("GOLD in PRED",),
    "visualwebarena": ("EXACT", "GOLD in PRED"),
}
_VISUAL_KEYS = ("image", "visual_difficulty")
"""Every task of VisualWebArena's has one of these; none of WebArena's has."""

_TEXTS = ("exact_match", "fuzzy_match")
"""Matches whose reference may be one text; the others' are lists of texts."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``config`` is all of it as it stands in its file; ``place`` is where."""

    id: str
    intent: str
    sites: tuple[str, ...]
    start_url: str
    package: Package
    eval_types: tuple[str, ...]
    config: dict[str, Any]
    place: Place
    images: tuple[str, ...] = ()

    def beside(self, name: str) -> str:
        """The whole path of a file that lies beside the task's; other names and addresses stay as they are."""
        file = Path(self.place.file).parent / name
        return str(file.resolve()) if file.is_file() else name

    @property
    def needs_model(self) -> tuple[str, ...]:
        """Which of its evaluators ask a language or vision model; empty where none does."""
        judged = self.config["eval"]
        found = [
            (
                "fuzzy_match",
                "string_match" in self.eval_types and "fuzzy_match" in (judged.get("reference_answers") or {}),
            )
        ]
        for target in _targets(self, "program_html"):
            texts = f"{target['url']} {target['locator']}"
            found.append(("fuzzy_match", "fuzzy_match" in target["required_contents"]))
            found += [(name, name in texts) for name in ("llm_fuzzy_match", "llm_ua_match")]
        found += [("eval_vqa", bool(query.get("eval_vqa"))) for query in _targets(self, "page_image_query")]
        return tuple(dict.fromkeys(name for name, asked in found if asked))


def _targets(task: Task, kind: str) -> list[dict[str, Any]]:
    return task.config["eval"].get(kind) or [] if kind in task.eval_types else []


def packaged() -> dict[str, Task]:
    """The tasks that come with the world ``office``."""
    return load_tasks(Path(str(files("statefork.worlds.office") / "tasks")))


def load_tasks(path: Path | str) -> dict[str, Task]:
    """The tasks of a file (one, a list, or an object with ``tasks``), or of every ``*.json`` in a folder, by their ids.

    Raises TasksInvalid with everything that is wrong, each with its place.
    """
    path = Path(path)
    found: dict[str, Task] = {}
    problems: list[Problem] = []
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        for task in _read(file, problems):
            if task.id in found:
                problems.append(Problem(place=task.place, message=f"task {task.id} is also at {found[task.id].place}"))
            found[task.id] = task
    if not found and not problems:
        problems.append(Problem(place=Place(file=str(path)), message="has no tasks"))
    if problems:
        raise TasksInvalid(problems)
    return found


def _read(file: Path, problems: list[Problem]) -> Iterable[Task]:
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
    except json.JSONDecodeError as error:
        place = Place(file=str(file), line=error.lineno, column=error.colno)
        problems.append(Problem(place=place, message=f"is not JSON: {error.msg}"))
        return
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(place=Place(file=str(file)), message=str(error)))
        return
    places = json_places(text, str(file))
    above: KeyPath = ()
    if isinstance(content, dict) and isinstance(content.get("tasks"), list):
        above, content = ("tasks",), content["tasks"]
    if isinstance(content, list):
        found: list[tuple[KeyPath, object]] = [((*above, number), one) for number, one in enumerate(content)]
    else:
        found = [((), content)]
    for at, config in found:
        checking = _Checking(places, at, file.parent)
        task = checking.task(config)
        problems += checking.problems
        if task is not None:
            yield task


class _Checking:
    """Looks one task through. ``at``: where it stands in the file."""

    def __init__(self, places: Places, at: KeyPath, folder: Path) -> None:
        self._places = places
        self._at = at
        self._folder = folder
        self.problems: list[Problem] = []

    def task(self, config: object) -> Task | None:
        """The task; None where something is wrong."""
        if not isinstance(config, dict):
            self._wrong((), "a task is an object")
            return None
        number = config.get("task_id")
        if not isinstance(number, int | str) or isinstance(number, bool) or number == "":
            self._wrong(("task_id",), "must be a number or a text")
        self._texts(config, ("intent",))
        self._texts(config, ("start_url",))
        self._list(config.get("sites"), ("sites",))
        package: Package = "visualwebarena" if self._visual(config) else "webarena"
        self._placeholders(config, ())
        judged = config.get("eval")
        if not isinstance(judged, dict):
            self._wrong(("eval",), "must be an object that says how the task is judged")
            return None
        self._judged(judged, package)
        images = self._images(config.get("image"))
        if self.problems:
            return None
        return Task(
            id=str(config["task_id"]),
            intent=config["intent"],
            sites=tuple(config["sites"]),
            start_url=config["start_url"],
            package=package,
            eval_types=tuple(judged["eval_types"]),
            config=config,
            place=self._places.of(self._at),
            images=images,
        )

    def _visual(self, config: Mapping[str, Any]) -> bool:
        judged = config.get("eval")
        kinds = judged.get("eval_types") if isinstance(judged, dict) else None
        return any(key in config for key in _VISUAL_KEYS) or (isinstance(kinds, list) and "page_image_query" in kinds)

    def _judged(self, judged: Mapping[str, Any], package: Package) -> None:
        kinds = judged.get("eval_types")
        if not self._list(kinds, ("eval", "eval_types")):
            return
        for number, kind in enumerate(kinds or ()):
            if kind not in EVAL_TYPES[package]:
                known = ", ".join(EVAL_TYPES[package])
                self._wrong(("eval", "eval_types", number), f"{kind!r} is no evaluator of {package}: {known}")
        kinds = kinds or ()
        if "string_match" in kinds:
            self._answers(judged.get("reference_answers"), ("eval", "reference_answers"), ANSWERS[package])
        if "url_match" in kinds:
            self._texts(judged, ("eval", "reference_url"))
            note = judged.get("url_note", URL_NOTES[package][0])
            if note not in URL_NOTES[package]:
                self._wrong(("eval", "url_note"), f"{note!r} is no rule of {package}: {', '.join(URL_NOTES[package])}")
        if "program_html" in kinds:
            for number, target in self._objects(judged, "program_html"):
                self._target(target, ("eval", "program_html", number), package)
        if "page_image_query" in kinds:
            for number, query in self._objects(judged, "page_image_query"):
                self._query(query, ("eval", "page_image_query", number))

    def _objects(self, judged: Mapping[str, Any], kind: str) -> Iterable[tuple[int, dict[str, Any]]]:
        found = judged.get(kind)
        if not isinstance(found, list) or not found:
            self._wrong(("eval", kind), "must be a list with at least one object")
            return
        for number, one in enumerate(found):
            if isinstance(one, dict):
                yield number, one
            else:
                self._wrong(("eval", kind, number), "must be an object")

    def _target(self, target: Mapping[str, Any], at: KeyPath, package: Package) -> None:
        self._texts(target, (*at, "url"))
        locator = target.get("locator")
        starts = ("document.", "[...document.", "func:") + (("lambda:",) if package == "visualwebarena" else ())
        if not isinstance(locator, str) or (locator.strip() and not locator.startswith(starts)):
            self._wrong((*at, "locator"), f"must be empty (the whole page) or begin with {' or '.join(starts)}")
        self._answers(target.get("required_contents"), (*at, "required_contents"), CONTENTS[package])

    def _query(self, query: Mapping[str, Any], at: KeyPath) -> None:
        self._texts(query, (*at, "eval_image_url"))
        locator = query.get("eval_image_class")
        if not isinstance(locator, str) or (locator.strip() and not locator.startswith(".")):
            self._wrong((*at, "eval_image_class"), "must be empty (all images) or a class such as .thumbnail")
        if not query.get("eval_vqa") and not isinstance(query.get("eval_fuzzy_image_match"), str):
            self._wrong(at, "needs eval_fuzzy_image_match (a picture) or eval_vqa (questions for a model)")

    def _answers(self, given: object, at: KeyPath, known: tuple[str, ...]) -> None:
        if not isinstance(given, dict) or not given:
            self._wrong(at, f"must be an object with one of {', '.join(known)}")
            return
        for name, value in given.items():
            if name not in known:
                self._wrong((*at, name), f"is none of {', '.join(known)}")
            elif isinstance(value, str) and name in _TEXTS:
                continue
            else:
                self._list(value, (*at, name))

    def _images(self, given: object) -> tuple[str, ...]:
        """Pictures that belong to the task: files beside it, or addresses."""
        names = [given] if isinstance(given, str) else given or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._wrong(("image",), "must be a text or a list of texts")
            return ()
        found = []
        for name in names:
            local = not name.startswith(("http:", "https:", "__"))
            if local and not (self._folder / name).is_file():
                self._wrong(("image",), f"there is no file {name} beside the tasks")
            found.append(str(self._folder / name) if local else name)
        return tuple(found)

    def _placeholders(self, value: object, at: KeyPath) -> None:
        if isinstance(value, str):
            for found in PLACEHOLDER.finditer(value):
                if found[1] not in NAMES:
                    self._wrong(at, f"{found[0]} is no site: {', '.join(NAMES)}")
        elif isinstance(value, dict):
            for key, one in value.items():
                self._placeholders(one, (*at, key))
        elif isinstance(value, list):
            for number, one in enumerate(value):
                self._placeholders(one, (*at, number))

    def _texts(self, holder: Mapping[str, Any], at: KeyPath) -> None:
        value = holder.get(str(at[-1]))
        if not isinstance(value, str) or not value:
            self._wrong(at, "must be a text, and not empty")

    def _list(self, value: object, at: KeyPath) -> bool:
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return True
        self._wrong(at, "must be a list of texts, and not empty")
        return False

    def _wrong(self, at: KeyPath, message: str) -> None:
        self.problems.append(Problem(place=self._places.of((*self._at, *at)), message=message))
