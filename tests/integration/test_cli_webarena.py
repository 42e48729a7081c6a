"""``statefork webarena`` beside an engine: a reset server that can't listen, and one that is told to end."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

from statefork.adapters.interfaces.cli.faults import EXIT_CANNOT
from statefork.adapters.interfaces.cli.main import invoke
from tests.integration.test_cli import PROGRAM, READY_S, Commands, commands, engine, read_line

__all__ = ["commands"]


def test_a_reset_server_ends_when_it_is_told_and_says_where_it_can_not_listen(
    tmp_path: Path, commands: Commands
) -> None:
    with engine(tmp_path, commands.state), socket.create_server(("127.0.0.1", 0)) as taken:
        commands("create", "one")
        port = taken.getsockname()[1]
        commands.capsys.readouterr()
        words = ["webarena", "reset-server", "one", "--state", str(commands.state)]
        assert invoke([*words, "--port", str(port)]) == EXIT_CANNOT
        told = commands.capsys.readouterr().err
        assert told.startswith(f"error[usage]: can't listen at 127.0.0.1:{port}: "), told
        assert "already in use" in told
        for number in (signal.SIGINT, signal.SIGTERM):
            command = [*PROGRAM, *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
                try:
                    assert read_line(serving).startswith("one is reset by GET http://127.0.0.1:")
                    serving.send_signal(number)
                    _, told = serving.communicate(timeout=READY_S)
                finally:
                    serving.kill()
            assert (serving.returncode, told) == (0, "")
