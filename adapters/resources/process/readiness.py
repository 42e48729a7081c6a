"""How it is known that a command serves: it listens, answers over HTTP, has said a line, or merely runs."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from statefork.adapters.resources.process.networks import Network
from statefork.adapters.resources.process.options import Ready
from statefork.adapters.resources.process.ports import HOST, listens

_ANSWER_S_MAX = 5.0
_LOG_BYTES_MAX = 1 << 20


def not_ready(
    ready: Ready, *, host: str, port: int, log: Path, pids: Callable[[], Iterable[int]], network: Network | None = None
) -> str:
    """Why it does not serve yet; empty when it does. Blocks for as long as an answer takes."""
    if ready.kind == "line":
        return "" if re.search(ready.what, _said(log), re.MULTILINE) else f"it has not said {ready.what!r}"
    if ready.kind == "running":
        return ""
    if not (listens(pids(), port) if network is None else _answers(network, port)):
        return f"no process of it listens at port {port}"
    return _asked(ready.what, host, port, network) if ready.kind == "http" else ""


def _answers(network: Network, port: int) -> bool:
    """Whether somebody listens in a network: there is nobody there but the command's processes."""
    try:
        network.connected(HOST, port, _ANSWER_S_MAX).close()
    except OSError:
        return False
    return True


def _said(log: Path) -> str:
    with log.open("rb") as file:
        return file.read(_LOG_BYTES_MAX).decode(errors="replace")


def _asked(path: str, host: str, port: int, network: Network | None) -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S_MAX)
    try:
        if network is not None:
            connection.sock = network.connected(HOST, port, _ANSWER_S_MAX)
        connection.request("GET", path, headers={"Host": host or f"{HOST}:{port}", "Connection": "close"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"GET {path} was not answered: {error or type(error).__name__}"
    finally:
        connection.close()
    return "" if 200 <= status < 400 else f"GET {path} was answered with {status}"
