"""Rack as a stack: one puma, with our Ruby hooks loaded around the application (``ruby/``)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from statefork.adapters.resources.web.behind.base import READY_PATH
from statefork.adapters.resources.web.behind.site import find_program
from statefork.adapters.resources.web.behind.spoken import SpokenStack
from statefork.adapters.resources.web.chance import drawn_seed
from statefork.adapters.resources.web.stack import Setup

HOOKS = Path(__file__).with_name("ruby")
_SPARE_THREADS = 2  # of puma's: who waits for a thread is not seen by the drain
_JOBS = 4  # connections of a binding beside those of its requests


class RackStack(SpokenStack):
    """A Rack application, Rails in particular, behind the server."""

    def start(self, setup: Setup) -> Path:
        """Start puma by our own program, which loads the application between the hooks."""
        ruby = find_program("ruby", hint=self.site.install)
        socket = self.run / "puma.sock"
        told = {
            "socket": str(socket),
            "key": self.key.hex(),
            "application": str(self.directory / self.site.application),
            "threads": setup.threads + _SPARE_THREADS,
            "connections_per_binding_max": setup.per_env + _JOBS,
            "connections_max": 4 * setup.threads,
            "ready": READY_PATH,
        }
        ours = {
            "STATEFORK_BEHIND": json.dumps(told),
            "STATEFORK_SITE": str(self.directory),
            "STATEFORK_HOOKS": str(HOOKS),
        }
        environment = {**os.environ, **self.site.environment, **ours}
        environment.setdefault("MALLOC_ARENA_MAX", "2")  # else each thread's arena keeps its peak
        command = [ruby, str(HOOKS / "host.rb")]
        self.speak_to(command, environment)
        return socket

    def given(self) -> dict[str, Any]:
        """The seed of the request's chance."""
        return {"seed": drawn_seed()}
