"""Several databases removed at once.

The server writes down all it has (a checkpoint) before each removal ends, and once for all that wait for it together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

TOGETHER_MAX = 8  # each takes one of the server's connections meanwhile


def each(names: Iterable[str], work: Callable[[str], None]) -> None:
    """Do this for each name, some at once, and return when all have ended. Raises the first error."""
    wanted = list(names)
    if len(wanted) <= 1:
        for name in wanted:
            work(name)
        return
    with ThreadPoolExecutor(min(TOGETHER_MAX, len(wanted)), thread_name_prefix="databases") as pool:
        done: list[Future[None]] = [pool.submit(work, name) for name in wanted]
        wait(done)
    for one in done:
        one.result()
