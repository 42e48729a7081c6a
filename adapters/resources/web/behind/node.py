"""Node as a stack, an extra: one process, with our hooks loaded before the application (``node/``)."""

from __future__ import annotations

import json
import os
from pathlib import Path

from statefork.adapters.resources.web.behind.base import READY_PATH
from statefork.adapters.resources.web.behind.site import find_program
from statefork.adapters.resources.web.behind.spoken import SpokenStack
from statefork.adapters.resources.web.stack import Setup

HOOKS = Path(__file__).with_name("node")


class NodeStack(SpokenStack):
    """An application of Node, whose database it reaches by the package ``pg``, behind the server."""

    def start(self, setup: Setup) -> Path:
        """Start node by our own program, which loads the application between the hooks."""
        node = find_program("node", "nodejs", hint=self.site.install)
        socket, temporary = self.run / "node.sock", self.run / "tmp"
        temporary.mkdir()
        recorded = self.directory / self.site.recorded
        told = {
            "socket": str(socket),
            "key": self.key.hex(),
            "application": str(self.directory / self.site.application),
            "recorded": str(recorded) if self.site.recorded else "",
            "connections_max": 4 * setup.threads,
            "ready": READY_PATH,
        }
        environment = {
            **os.environ,
            "NODE_ENV": "production",
            "NODE_PATH": str(Path(self.site.root) / "node_modules"),  # for files that lie elsewhere
            **self.site.environment,
            "TMPDIR": str(temporary),  # what an application leaves there ends with it
            "STATEFORK_BEHIND": json.dumps(told),
            "STATEFORK_SITE": str(self.directory),
            "STATEFORK_HOOKS": str(HOOKS),
        }
        command = [node, "--expose-gc", str(HOOKS / "host.js")]
        self.speak_to(command, environment)
        return socket
