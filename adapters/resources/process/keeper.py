"""Keeps one private backend: ``python -I -S keeper.py``, told by its standard input. Uses only the standard library.

The first line is the plan, as JSON (in no argument: those are seen by everybody). Later lines: ``stop`` asks the
command to end. When the input closes, however the engine ended, the command is killed with all that it has started.

All of that: the keeper is the one to whom the kernel gives orphans (a *subreaper*), so a process that forks twice,
leads a session of its own or wipes its environment is still below it. Where there is a cgroup leaf or a user of the
command's own, these are ended at one blow first, which also ends what forks faster than it can be looked at.

It ends when the command has: with its status, or 128 plus the signal's number.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
from typing import Any

_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_CLONE_NEWNET, _CLONE_NEWNS, _CLONE_NEWIPC = 0x40000000, 0x00020000, 0x08000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
# Places that all users share: whoever runs here is to find them empty.
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock", "/var/lib/php/sessions")
_LOOK_AGAIN_MS = 5
_PLAN_BYTES_MAX = 16 << 20
CANNOT_RUN = 127
HOMES, HOME = "/home", "agent"


class Keeper:
    """One command and what it has started."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.main = 0
        self.status: int | None = None  # of the command, once it has ended

    def start(self) -> None:
        """Fork; the child becomes the command, in a session of its own."""
        self.main = os.fork()
        if self.main:
            if self.plan["network"] >= 0:
                os.close(self.plan["network"])  # the command is in it, and the engine holds it
        else:
            try:
                self._become()
            except OSError as error:
                told = f"{self.plan['command'][0]} can't be run: {error.strerror} {error.filename or ''}\n"
                os.write(2, told.encode(errors="replace"))
            finally:
                os._exit(CANNOT_RUN)

    def _become(self) -> None:
        try:
            self._move_in()
        except OSError as error:
            if self.plan.get("failed"):  # nobody is to take this for what the command said
                with open(self.plan["failed"], "w") as file:  # noqa: PTH123 - as below
                    file.write(f"{error.strerror} {error.filename or ''}".strip())
            raise
        self._run()

    def _move_in(self) -> None:
        plan = self.plan
        os.setsid()
        read = os.open(plan["stdin"], os.O_RDONLY) if plan.get("stdin") else os.open(os.devnull, os.O_RDWR)
        os.dup2(read, 0)
        os.close(read)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if plan["leaf"]:
            _write(f"{plan['leaf']}/cgroup.procs", "0")
        if plan["network"] >= 0:
            _enter(plan["network"])
        if plan.get("temporary"):
            _cover(plan["temporary"], plan["homes"], plan["tree"])
        if plan["uid"] is not None:
            if plan["processes_max"]:
                resource.setrlimit(resource.RLIMIT_NPROC, (plan["processes_max"], plan["processes_max"]))
            os.setgroups([])
            os.setresgid(plan["gid"], plan["gid"], plan["gid"])
            os.setresuid(plan["uid"], plan["uid"], plan["uid"])

    def _run(self) -> None:
        plan = self.plan
        if plan["alone"]:
            os.umask(0o077)
            ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # nor does a program of root's make it another
        os.chdir(plan["directory"])
        os.execvpe(plan["command"][0], plan["command"], plan["environment"])

    def ask_to_end(self) -> None:
        """The stop signal, to the command's process group."""
        try:
            os.killpg(self.main, self.plan["stop_signal"])
        except ProcessLookupError:
            return

    def reap(self) -> None:
        """Take note of whatever has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.main:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def end_all(self) -> None:
        """Kill until nothing is left."""
        waiting = select.poll()
        while True:
            if self.plan["leaf"]:
                _write(f"{self.plan['leaf']}/cgroup.kill", "1")
            if self.plan["alone"] and self.plan["uid"] is not None:
                self._end_user()
            left = descendants(os.getpid())
            for pid in left:
                _kill(pid)
            self.reap()
            if not left:
                return
            waiting.poll(_LOOK_AGAIN_MS)

    def _end_user(self) -> None:
        """Everything of the command's own user, which nobody else on this machine has."""
        helper = os.fork()
        if not helper:
            try:
                os.setresuid(self.plan["uid"], self.plan["uid"], self.plan["uid"])
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(helper, 0)


def descendants(of: int) -> list[int]:
    """Every process below one, zombies left out. By parents, since threads have children of their own."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a keeper loads as few modules as it can: there is one for each
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - for the same reason
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state not in b"ZX":
                children.setdefault(int(parent), []).append(int(name))
    found, pending = [], [of]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _enter(network: int) -> None:
    """Go into a network namespace, and keep no way to it. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "its network")
    os.close(network)


def _cover(temporary: str, homes: str, tree: str) -> None:
    """Let what all users share be directories of its own, and the tree its home. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int, what: str) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)

    def bind(source: str, target: str) -> None:
        checked(libc.mount(source.encode(), target.encode(), None, _MS_BIND | _MS_REC, None), target)

    checked(libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC), "its mounts")
    checked(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "its mounts")
    bind(tree, f"{homes}/{HOME}")
    held = {}
    for directory in (temporary, homes):  # they may lie in what is covered
        held[directory] = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for place, directory in (*((place, temporary) for place in _TEMPORARY), (HOMES, homes)):
        if os.path.isdir(place):  # noqa: PTH112 - as above
            bind(f"/proc/self/fd/{held[directory]}", os.path.realpath(place))


def _write(path: str, text: str) -> None:
    try:
        file = os.open(path, os.O_WRONLY)
    except OSError:
        return  # the leaf is gone, or not ours any more: what is below us is ended one by one
    try:
        os.write(file, text.encode())
    except OSError:
        return
    finally:
        os.close(file)


def _read_plan() -> tuple[dict[str, Any], bool]:
    """The plan, and whether more was said behind it already."""
    data, end = bytearray(), -1
    while end < 0:
        more = os.read(0, 65536)
        if not more or len(data) > _PLAN_BYTES_MAX:
            sys.exit("the engine ended before it had told what to run")
        end = more.find(b"\n")
        end = end if end < 0 else len(data) + end
        data += more
    plan: dict[str, Any] = json.loads(data[:end])
    return plan, len(data) > end + 1


def main() -> int:
    """Run the plan to the command's end, or the engine's."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT):  # the engine's input says when it is time
        signal.signal(number, signal.SIG_IGN)
    plan, asked_to_end = _read_plan()
    keeper = Keeper(plan)
    keeper.start()
    if asked_to_end:
        keeper.ask_to_end()
    waiting = select.poll()
    waiting.register(0, select.POLLIN | select.POLLHUP)
    waiting.register(told, select.POLLIN)
    while keeper.status is None:
        ready = dict(waiting.poll())
        if told in ready:
            os.read(told, 4096)
            keeper.reap()
        if 0 in ready:
            if not os.read(0, 4096):
                break
            keeper.ask_to_end()
    keeper.end_all()
    return CANNOT_RUN if keeper.status is None else keeper.status


if __name__ == "__main__":
    os._exit(main())
