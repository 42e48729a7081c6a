"""House rules that no other tool checks. Each test collects every offence, so that one run tells them all."""

from __future__ import annotations

import ast
import gc
import importlib
import re
import runpy
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("journal", "engine", "replay", "adapters")
MODULE_LINES_MAX = 410  # 400 lines or so
FUNCTION_LINES_MAX = 60
TEST_MODULE_LINES_MAX = 500
TEST_FUNCTION_LINES_MAX = 120  # of a story that is told in one go, or a table of data
FILE_BYTES_MAX = 300_000

PURE = (
    "journal/codec.py",
    "journal/activity.py",
    "journal/event.py",
    "journal/events.py",
    "journal/values.py",
    "engine/capsule.py",
    "engine/contract.py",
    "engine/places.py",
    "engine/refs.py",
    "engine/transitions.py",
    "replay/lineage.py",
    "replay/audit/*.py",
)
"""Modules that get time, names and chance from their caller, so that the same input gives the same result for ever."""

IMPURE_IMPORTS = frozenset({"time", "random", "uuid", "secrets"})
IMPURE_CALLS = frozenset({"now", "utcnow", "today", "urandom", "fromtimestamp"})
MACHINE_PATH = re.compile(r"(?<![\w.>])/(?:tmp|root|home|work|opt)/(?!agent\b)[a-z.]")  # one that we make
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
SILENCED = re.compile(
    r"#\s*(?:type:\s*ignore(?:\[[\w, -]+\])?|noqa(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|pragma:\s*no\s+\w+)"
    r"\W*(?P<reason>.*)"
)
FRAMEWORK_MODULES = frozenset({"apps", "formats", "models", "repository"})
"""Module names that Django and its apps look for in a package that the settings name."""
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project, new ones too, ignored ones and links not; paths are relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = (Path(name) for name in sorted(set(listed.split("\0"))) if name)
    return tuple(path for path in found if (ROOT / path).is_file() and not (ROOT / path).is_symlink())


def python_files(*folders: str) -> list[Path]:
    """Python files, of some top folders if any are named."""
    return [path for path in files() if path.suffix == ".py" and (not folders or path.parts[0] in folders)]


def text(path: Path) -> str:
    """A file's text."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """A Python file's syntax tree.

    Nothing is collected meanwhile. What the collector ends may print a traceback, which parses the lines that it shows;
    and before 3.11.8 a parse within a parse is an error of the interpreter (CPython issue 106905).
    """
    gc.disable()
    try:
        return ast.parse(text(path), str(path))
    finally:
        gc.enable()


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    """A file's lines with their numbers."""
    return enumerate(text(path).splitlines(), 1)


def module_name(path: Path) -> str:
    """The dotted name under which a file of a room, or of statefork/, is imported."""
    parts = path.with_suffix("").parts
    if parts[0] in ROOMS:
        parts = ("statefork", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports, members of modules included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_modules_fit_one_idea() -> None:
    long = []
    for path in python_files():
        lines = text(path).count("\n")
        if lines > (TEST_MODULE_LINES_MAX if path.parts[0] == "tests" else MODULE_LINES_MAX):
            long.append(f"{path}: {lines}")
    assert not long, "too many lines for one module"


def test_functions_fit_a_screen() -> None:
    long = []
    for path in python_files():
        most = TEST_FUNCTION_LINES_MAX if path.parts[0] == "tests" else FUNCTION_LINES_MAX
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > most:
                    long.append(f"{path}:{node.lineno} {node.name}: {lines}")
    assert not long, "too many lines for one function"


def test_pure_modules_ask_nobody_for_time_or_chance() -> None:
    found = []
    for path in (path for pattern in PURE for path in files() if path.match(pattern)):
        found += [f"{path} imports {name}" for name in imports(path) if name.split(".")[0] in IMPURE_IMPORTS]
        found += [
            f"{path}:{node.lineno} calls {node.func.attr}"
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_CALLS
        ]
    assert not found
    assert all(any(path.match(pattern) for path in files()) for pattern in PURE), "a pure module has another name now"


def test_libraries_do_not_print() -> None:
    found = []
    for path in python_files("journal", "engine", "replay", "adapters"):
        if path.parts[:2] == ("adapters", "interfaces"):
            continue
        entries = [node for node in tree(path).body if isinstance(node, ast.FunctionDef) and node.name == "main"]
        entries += [node for node in tree(path).body if isinstance(node, ast.If) and "__name__" in ast.dump(node.test)]
        allowed = {id(node) for entry in entries for node in ast.walk(entry)}
        found += [
            f"{path}:{node.lineno}"
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if id(node) not in allowed
        ]
    assert not found, "only interfaces print, and the main() of a module that is run"


def test_no_module_is_dead() -> None:
    sources = [path for path in python_files() if path.parts[0] != "tests"]
    used = {name for path in sources for name in imports(path) if name != module_name(path)}
    for (
        path
    ) in files():  # named as data: a console script, a `python -m`, a contract's build, a Django setting, a guide
        if path.suffix in (".py", ".toml", ".md") and path.parts[0] != "tests":
            used |= set(re.findall(r"[\"'`\s]((?:statefork|benchmarks)(?:\.\w+)+)", text(path)))
    modules = [path for path in sources if path.parts[0] in (*ROOMS, "statefork")]
    dead = [
        str(path)
        for path in modules
        if path.name not in ("__init__.py", "__main__.py")
        if not (path.stem in FRAMEWORK_MODULES and any(module_name(parent) in used for parent in path.parents))
        if not any(name == module_name(path) or name.startswith(module_name(path) + ".") for name in used)
    ]
    assert not dead, "nobody imports it and no entry point names it"


def test_every_test_file_has_tests() -> None:
    empty = [
        str(path)
        for path in python_files("tests")
        if path.name.startswith("test_")
        if not any(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            for node in ast.walk(tree(path))
        )
        if "ConformanceSuite" not in text(path) and "conformance" not in text(path)
    ]
    assert not empty


def test_asynchronous_properties_draw_before_they_run() -> None:
    """Drawing in the middle ends a run by an exception that is no Exception: AnyIO's runner dies of it, unheard."""
    found = []
    for path in python_files("tests"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.AsyncFunctionDef):
                drawn = [one for given in node.decorator_list for one in ast.walk(given) if _draws_later(one)]
                found += [f"{path}:{one.lineno} {node.name}" for one in drawn]
    assert not found, "st.data() in an asynchronous test"


def _draws_later(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "data"


def test_no_path_of_one_machine() -> None:
    suffixes = (".py", ".md", ".toml", ".sh", ".svg", ".yml", "")
    found = [
        f"{path}:{number} {line.strip()[:100]}"
        for path in files()
        if path.suffix in suffixes and path != Path("tests/test_tidy.py")
        for number, line in numbered(path)
        if MACHINE_PATH.search(line)
    ]
    assert not found


def test_nothing_is_unfinished_or_silenced_without_a_reason() -> None:
    found = []
    for path in python_files():
        if path == Path("tests/test_tidy.py"):
            continue
        for number, line in numbered(path):
            silenced = SILENCED.search(line)
            if UNFINISHED.search(line) or (silenced and not silenced["reason"]):
                found.append(f"{path}:{number} {line.strip()[:100]}")
    assert not found, "finish it, or put the reason beside it"


def test_no_large_files() -> None:
    large = [f"{path}: {size}" for path in files() if (size := (ROOT / path).stat().st_size) > FILE_BYTES_MAX]
    assert not large


def test_rooms_are_linked_into_the_package() -> None:
    for room in ROOMS:
        link = ROOT / "statefork" / room
        assert link.is_symlink(), f"{link} must be a link: one name, statefork, is installed"
        assert link.readlink() == Path("..", room)


def error_classes() -> list[type[Exception]]:
    """Every exception of ours, from all modules."""
    from statefork.journal.errors import StateforkError

    for path in python_files(*ROOMS):
        if re.search(r"^    code(: ClassVar\[str\])? = ", text(path), re.MULTILINE):
            importlib.import_module(module_name(path))
    waiting: list[type[Exception]] = [StateforkError]
    found: list[type[Exception]] = []
    while waiting:
        kind = waiting.pop()
        found.append(kind)
        waiting.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__.startswith("statefork.")]


def test_error_codes_are_unique_and_documented() -> None:
    codes: dict[str, str] = {}
    for kind in error_classes():
        code = kind.__dict__.get("code")
        assert isinstance(code, str), f"{kind.__name__} has no code of its own"
        assert code not in codes, f"{kind.__name__} and {codes[code]} share the code {code}"
        codes[code] = kind.__name__
    documented = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text(Path("docs/reference/errors.md")), re.MULTILINE))
    assert documented == codes


def slug(heading: str) -> str:
    """The anchor of a heading, as renderers of Markdown make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def anchors(file: Path) -> set[str]:
    """The anchors of a document's headings."""
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)}


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path in (path for path in files() if path.suffix == ".md"):
        body = re.sub(r"```.*?```", "", text(path), flags=re.DOTALL)
        for target in (match[1] or match[2] for match in LINK.finditer(body)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (ROOT / path.parent / name).resolve() if name else ROOT / path
            if not file.exists():
                broken.append(f"{path}: {target}")
            elif anchor and anchor not in anchors(file):
                broken.append(f"{path}: {target} (no such heading)")
    assert not broken


def test_lock_was_made_from_this_pyproject() -> None:
    header = runpy.run_path(str(ROOT / ".ci/lock_inputs.py"))["header"]()
    assert text(Path("requirements.lock")).startswith(header + "\n"), "run ./dev lock"


def test_lock_names_no_registry() -> None:
    assert "://" not in text(Path("requirements.lock"))


def documented_commands(program: str) -> set[tuple[str, str]]:
    """(document, first word after the program) of every console line in the README and the documents."""
    documents = [path for path in files() if path.suffix == ".md"]
    pattern = re.compile(rf"(?:^|[\s`$]){re.escape(program)} ([a-z][a-z-]*)", re.MULTILINE)
    found = set()
    for path in documents:
        blocks = re.findall(r"```(?:console|bash|sh)\n(.*?)```", text(path), re.DOTALL)
        found |= {(str(path), name) for block in blocks for name in pattern.findall(block)}
        found |= {(str(path), name) for name in re.findall(rf"`{re.escape(program)} ([a-z][a-z-]*)", text(path))}
    return found


@pytest.mark.parametrize("program", ["./dev", "statefork"])
def test_documented_commands_exist(program: str) -> None:
    if program == "./dev":
        usage = subprocess.run([str(ROOT / "dev"), "help"], check=True, capture_output=True, text=True).stdout
        known = set(re.findall(r"^  ([a-z]+) ", usage, re.MULTILINE))
    else:
        from typer.main import get_command

        from statefork.adapters.interfaces.cli.main import app

        known = set(getattr(get_command(app), "commands"))  # noqa: B009 # click's Group is not in its type
    unknown = sorted(pair for pair in documented_commands(program) if pair[1] not in known)
    assert not unknown
    assert documented_commands(program)
