"""``python -m statefork.worlds.shop``: build the base, or serve one copy of the shop as an ordinary private server.

The private server is the reference that the shared one is compared with.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m statefork.worlds.shop", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build a fresh base into a directory")
    make.add_argument("directory", type=Path)
    serve = commands.add_parser("serve", help="serve one private copy (written to: give a copy, not a base in use)")
    serve.add_argument("--base", type=Path, required=True, help="directory with shop.sqlite3, media/ and search/")
    serve.add_argument("--port", type=int, default=8000, help="0: any free one, which is printed")
    serve.add_argument("--threads", type=int, default=4)
    given = parser.parse_args(arguments)
    if given.command == "build":
        from statefork.worlds.shop.build import build

        build(given.directory, lambda fraction, text: print(f"{fraction:4.0%}  {text}", file=sys.stderr))
        return 0
    return _serve(given.base, given.port, given.threads)


def _serve(base: Path, port: int, threads: int) -> int:
    if not (base / "shop.sqlite3").is_file():
        print(f"no shop at {base}: build one with `python -m statefork.worlds.shop build {base}`", file=sys.stderr)
        return 2
    os.environ["STATEFORK_SHOP_BASE"] = str(base.resolve())
    os.environ["DJANGO_SETTINGS_MODULE"] = "statefork.worlds.shop.settings"
    from django.core.wsgi import get_wsgi_application
    from waitress.server import create_server

    server = create_server(get_wsgi_application(), host="127.0.0.1", port=port, threads=threads, ident="")
    print(f"the shop serves on http://127.0.0.1:{server.effective_port}/ (Ctrl-C ends it)", file=sys.stderr, flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
