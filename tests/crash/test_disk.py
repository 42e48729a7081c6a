"""A disk that fills up, and rights that are taken away, in the middle of everything: real ones.

The old generation serves, nothing staged is left, the error says which component and what to do; and once the cause is
gone the very same command succeeds. (The real shop's tests do the same with a browser, see ``test_shop_failures.py``.)
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from statefork.engine.capsule import Phase
from statefork.engine.errors import StateforkError, TransitionAborted
from statefork.journal.errors import JournalUnavailable
from statefork.journal.values import Moment
from tests.crash import examine
from tests.crash.hands import Hands
from tests.crash.kill_kit import opened

pytestmark = pytest.mark.anyio

ROOM_BYTES = 24 << 20
BASE_BYTES = 2 << 20  # of the database: every branch needs as much
Work = Callable[[Hands], Awaitable[object]]

COMMANDS: dict[str, Work] = {
    "create": lambda hands: hands.create("child"),
    "snapshot": lambda hands: hands.snapshot("shop"),
    "reset": lambda hands: hands.reset("shop"),
    "restore": lambda hands: hands.restore("shop", 2),
    "fork": lambda hands: hands.fork(Moment(env="shop", generation=2), ["child"]),
    "clone": lambda hands: hands.clone("shop", "child"),
    "park": lambda hands: hands.park("shop"),
    "activate": lambda hands: hands.kernel.activate("resting"),
}


WORDS = {"full": "is full. Free space", "forbidden": "may not write there", "narrow": "ulimit -f"}


@pytest.fixture
def anyio_backend() -> str:
    """What fails here fails in threads and processes; the loops differ nowhere."""
    return "trio"


@contextmanager
def disk(place: Path) -> Iterator[None]:
    """A small disk of its own at a directory."""
    place.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(place)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # also where a failed engine still holds a file


@contextmanager
def full(place: Path) -> Iterator[None]:
    """No byte is left."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 512):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def forbidden(place: Path) -> Iterator[None]:
    """Nothing can be made or removed in the folders of the stores: modes, or for root a flag that binds even root."""
    folders = [
        folder for store in place.iterdir() for folder in (store / "branches", store / "layers", store / "sealed")
    ]
    for folder in folders:
        _forbid(folder, on=True)
    try:
        yield
    finally:
        for folder in folders:
            _forbid(folder, on=False)


def _forbid(folder: Path, *, on: bool) -> None:
    if os.geteuid() != 0:
        folder.chmod(0o500 if on else 0o755)
        return
    if shutil.which("chattr") is None:
        pytest.skip("root needs chattr (package e2fsprogs) to forbid itself anything")
    done = subprocess.run(["chattr", "+i" if on else "-i", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no immutable directories here: {done.stderr.strip()}")


@contextmanager
def narrow(place: Path) -> Iterator[None]:
    """No file may grow beyond the half of a database: what a quota does to users who are not root."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BASE_BYTES // 2, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


async def lived(hands: Hands) -> None:
    """Generation 2 and a tail; and somebody who rests."""
    await hands.create("resting", activate=False)
    await hands.create("shop")
    await hands.write("shop", "1")
    await hands.snapshot("shop")
    await hands.write("shop", "2")


async def everything(hands: Hands) -> dict[str, list[str]]:
    """All that a transition could leave behind in the stores."""
    found: dict[str, list[str]] = {}
    for name, kept in hands.kernel.resources.items():
        found[name] = sorted([str(handle) async for handle in kept.inventory()])
    for folder in ("branches/*", "sealed/*", "tmp/*"):
        found[folder] = sorted(str(path) for path in (hands.assembled.state / "resources").glob(f"*/{folder}"))
    return found


def layers(hands: Hands) -> int:
    """How many layers the trees have."""
    return len(list((hands.assembled.state / "resources" / "media" / "layers").iterdir()))


async def failed(work: Awaitable[object]) -> StateforkError:
    """The error of a command that has to fail."""
    with pytest.raises(StateforkError) as caught:
        await work
    return caught.value


async def refuses_and_serves(hands: Hands, command: str, cause: AbstractContextManager[None]) -> StateforkError:
    """The command fails while the cause lasts, and leaves all as it was."""
    before, before_layers = await everything(hands), layers(hands)
    old = {env: (capsule.moment, capsule.phase) for env, capsule in hands.kernel.environments.items()}
    holds, tails = dict(hands.facts.holds), {env: list(tail) for env, tail in hands._tails.items()}
    with cause:
        error = await failed(COMMANDS[command](hands))
        now = {env: (capsule.moment, capsule.phase) for env, capsule in hands.kernel.environments.items()}
        assert now == old, error
    hands.facts.holds, hands._tails = holds, tails
    left = await everything(hands)
    assert left == before, error
    # A tree that was sealed in vain goes on over what it had written.
    assert layers(hands) <= before_layers + 1, error
    return error


async def goes_on(hands: Hands, command: str) -> None:
    """The very same command succeeds, and everybody holds what they should."""
    await hands.write("shop", f"after {command}")
    await COMMANDS[command](hands)
    await examine.heads(hands.kernel, hands)
    hands.will_close()


def room(how: str, folder: Path) -> tuple[list[AbstractContextManager[None]], AbstractContextManager[None], Path]:
    """The disks, what goes wrong, and the state directory."""
    state = folder / "state"
    stores = state / "resources"
    if how == "full":
        return [disk(stores)], full(stores), state
    return [], (forbidden if how == "forbidden" else narrow)(stores), state


@pytest.mark.parametrize("how", [pytest.param("full", marks=pytest.mark.root), "forbidden", "narrow"])
@pytest.mark.parametrize("command", COMMANDS)
async def test_stores_that_can_not_be_written(tmp_path: Path, command: str, how: str) -> None:
    disks, cause, state = room(how, tmp_path)
    with ExitStack() as stack:
        for mounted in disks:
            stack.enter_context(mounted)
        async with opened(tmp_path, state, base_bytes=BASE_BYTES) as hands:
            await lived(hands)
            error = await refuses_and_serves(hands, command, cause)
            assert isinstance(error, TransitionAborted), error
            assert error.facts["component"] in ("db", "media"), error
            assert error.facts["operation"], error
            told = str(error)
            assert {"full": "is full. Free space", "forbidden": "may not write there", "narrow": "ulimit -f"}[
                how
            ] in told
            assert "try again" in told
            await goes_on(hands, command)
        examine.audited(state)
        examine.tidy(state)


@pytest.mark.root
@pytest.mark.parametrize("command", COMMANDS)
async def test_a_journal_that_can_not_be_written(tmp_path: Path, command: str) -> None:
    state = tmp_path / "state"
    with disk(state), disk(state / "resources"):
        async with opened(tmp_path, state, base_bytes=BASE_BYTES) as hands:
            await lived(hands)
            error = await refuses_and_serves(hands, command, full(state))
            assert "The disk is full" in str(error) or "disk is full" in str(error)
            assert "Free space" in str(error)
            await goes_on(hands, command)
        with full(state), pytest.raises(JournalUnavailable, match="disk is full"):
            async with opened(tmp_path, state, base_bytes=BASE_BYTES):
                pass
        async with opened(tmp_path, state, base_bytes=BASE_BYTES) as hands:
            assert hands.kernel.recovered.clean
            assert all(one.phase in (Phase.PARKED, Phase.RETIRED) for one in hands.kernel.environments.values())
        examine.audited(state)
        examine.tidy(state)
