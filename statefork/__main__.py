"""``python -m statefork``: the command line."""

from __future__ import annotations

from statefork.adapters.interfaces.cli.main import main

if __name__ == "__main__":
    main()
