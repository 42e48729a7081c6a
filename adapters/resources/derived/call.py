"""``python -m statefork.adapters.resources.derived.call MODULE:FUNCTION``: builds a tree by a Python function.

Standard input holds the plan as JSON: ``{"output": <directory>, "inputs": {<name>: <address>}}``.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    """Call the function as ``function(output, inputs)``."""
    plan = json.load(sys.stdin)
    module, _, function = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), function)(Path(plan["output"]), plan["inputs"])


if __name__ == "__main__":
    main()
