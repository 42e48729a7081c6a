"""The guides to Gymnasium and BrowserGym: they show the examples as they are, and those print what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.document_kit import Shell, blocks
from tests.integration.venv_kit import venv_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_LINES_MAX = 30
SHOWN = {"use-with-gymnasium": "gymnasium_loop", "use-with-browsergym": "browsergym_agent"}


@pytest.mark.parametrize(("name", "example"), SHOWN.items())
def test_an_example_is_shown_as_it_is_and_short(name: str, example: str) -> None:
    source = (ROOT / f"examples/{example}.py").read_text(encoding="utf-8")
    assert f"```python\n{source}```" in (ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8")
    assert len(source.splitlines()) < EXAMPLE_LINES_MAX


@pytest.mark.shop
@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SHOWN)
def test_it_does_what_it_says(name: str, tmp_path: Path) -> None:
    from tests.integration.shop_kit import seeded

    seeded(tmp_path / "state/gym/shop")
    shell, example = Shell(tmp_path), f"{SHOWN[name]}.py"
    (tmp_path / example).write_bytes((ROOT / "examples" / example).read_bytes())
    if name == "use-with-browsergym":
        python = venv_of(Path(__file__).parent / "venvs/browsergym.txt")
        shell.environment["PATH"] = f"{python.parent}:{shell.environment['PATH']}"
    for block in blocks((ROOT / f"docs/how-to/{name}.md").read_text(encoding="utf-8")):
        if block.language == "console":
            shell.run(block)
