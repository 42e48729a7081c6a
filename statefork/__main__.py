"""``python -m statefork`` and the console script: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A Ctrl-C while it is still being loaded ends it as quietly as a later one."""
    try:
        from statefork.adapters.interfaces.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
