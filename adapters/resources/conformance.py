"""What every resource must do, as tests that anyone's adapter can run.

Subclass :class:`ResourceConformance` in a test module, give it a ``bench`` fixture, and pytest collects the rest::

    class TestMyResource(ResourceConformance):
        @pytest.fixture
        def bench(self, tmp_path):
            return Bench(make=..., write=..., read=..., state=tmp_path / "state", base_dir=tmp_path)

The tests are ``async def`` with the ``anyio`` marker: parametrise ``anyio_backend`` to run them on trio and asyncio.
Nothing but pytest and anyio is needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import anyio
import pytest

from statefork.adapters.resources.conformance_kit import JOURNAL, OTHER_JOURNAL, Bench, Driver
from statefork.engine.errors import ForeignHandle, ResourceFailed, StateforkError
from statefork.engine.ports import Owner, Portable
from statefork.journal.values import Branch, Sealed

__all__ = ["Bench", "Driver", "ResourceConformance"]


class Drive(Protocol):
    """A new driver; of another journal if one is named."""

    def __call__(self, journal: str = JOURNAL) -> Driver:
        """Make it."""
        ...


@pytest.mark.anyio
class ResourceConformance:
    """The rules. Every test begins with a fresh state directory.

    Where an adapter can't carry its versions in files (see engine.ports.Portable), exports say so by its name, and the
    subclass leaves that test out: ``test_what_is_packed_is_unpacked_in_another_journal = None``.
    """

    uses = 20
    """After how many lives of a branch everything is counted; fewer where each takes long."""

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        """To be given by the subclass."""
        raise NotImplementedError

    @pytest.fixture
    async def drive(self, bench: Bench) -> AsyncIterator[Drive]:
        """Makes drivers, and stops their resources when the test has ended."""
        made: list[Driver] = []

        def new(journal: str = JOURNAL) -> Driver:
            made.append(Driver(bench, journal))
            return made[-1]

        yield new
        for driver in made:
            await driver.resource.stop()

    async def test_the_same_base_gives_the_same_version(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        assert await one.resource.provision() == base
        assert await drive().base() == base

    async def test_a_branch_shows_the_base_and_takes_writes(self, drive: Drive) -> None:
        one = drive()
        branch, binding = await one.open(await one.base())
        await one.write(binding, "key", "value")
        assert await one.read(binding, "key") == "value"
        assert await one.read(binding, "other") is None
        await one.close(branch, binding)

    async def test_two_branches_of_one_version_are_isolated(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        digest = await one.resource.digest(base)
        left, left_binding = await one.open(base, env="left")
        right, right_binding = await one.open(base, env="right")
        await one.write(left_binding, "key", "left")
        await one.write(right_binding, "key", "right")
        assert await one.read(left_binding, "key") == "left"
        assert await one.read(right_binding, "key") == "right"
        sealed_left, sealed_right = await one.cut(left), await one.cut(right)
        digests = {await one.resource.digest(sealed) for sealed in (base, sealed_left, sealed_right)}
        assert len(digests) == 3
        assert await one.resource.digest(base) == digest
        assert await one.seen(base, "key") is None

    async def test_two_epochs_of_one_environment_are_isolated(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        old, old_binding = await one.open(base, epoch=1)
        _, new_binding = await one.open(base, epoch=2)
        await one.write(old_binding, "key", "abandoned")
        assert await one.read(new_binding, "key") is None
        await one.close(old, old_binding)
        await one.write(new_binding, "key", "kept")
        assert await one.read(new_binding, "key") == "kept"

    async def test_an_unchanged_branch_seals_as_the_same_version(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        assert await one.cut(branch) == base
        await one.write(binding, "key", "value")
        first = await one.cut(branch)
        assert first.version != base.version
        assert await one.cut(branch) == first
        assert await one.read(binding, "key") == "value"
        assert await one.cut(branch) == first

    async def test_what_is_packed_is_unpacked_in_another_journal(self, drive: Drive, tmp_path: Path) -> None:
        one, other = drive(), drive(OTHER_JOURNAL)
        assert isinstance(one.resource, Portable), "see the class's docstring where its versions can't be carried"
        branch, binding = await one.open(await one.base())
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        packed = Path(tempfile.mkdtemp(dir=tmp_path))
        await one.resource.pack(sealed, packed)
        await other.base()
        assert isinstance(other.resource, Portable)
        made = await other.resource.unpack(packed)
        assert made.journal == OTHER_JOURNAL
        assert await other.resource.digest(made) == await one.resource.digest(sealed)
        assert await other.seen(made, "key") == "value"
        assert (await other.resource.unpack(packed)).version != made.version
        with pytest.raises(ResourceFailed):
            await other.resource.unpack(Path(tempfile.mkdtemp(dir=tmp_path)))
        held = {handle.version async for handle in other.resource.inventory() if isinstance(handle, Sealed)}
        assert made.version in held

    async def test_writing_after_a_seal_leaves_the_version_alone(self, drive: Drive) -> None:
        one = drive()
        branch, binding = await one.open(await one.base())
        versions = []
        for number in range(4):
            await one.write(binding, "key", f"value {number}")
            await one.write(binding, f"key {number}", "x")
            versions.append(await one.cut(branch))
        await one.write(binding, "key", "later")
        assert [await one.seen(version, "key") for version in versions] == [f"value {n}" for n in range(4)]
        assert await one.seen(versions[1], "key 2") is None
        assert await one.read(binding, "key") == "later"
        assert await one.read(binding, "key 0") == "x"

    async def test_versions_may_be_discarded_in_any_order(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        versions = []
        for number in range(3):
            await one.write(binding, f"key {number}", str(number))
            versions.append(await one.cut(branch))
        for gone in (base, versions[1], versions[0]):
            await one.resource.discard(gone)
            await one.resource.discard(gone)
        assert await one.read(binding, "key 0") == "0"
        assert await one.seen(versions[2], "key 1") == "1"
        await one.close(branch, binding)
        await one.resource.discard(branch)
        assert await one.seen(versions[2], "key 0") == "0"
        assert await one.handles() == [versions[2]]
        with pytest.raises(ResourceFailed):
            await one.open(versions[0])

    async def test_write_mark_changes_with_every_write_and_with_nothing_else(self, drive: Drive) -> None:
        one = drive()
        branch, binding = await one.open(await one.base())
        marks = [await one.resource.write_mark(branch)]
        for number in range(5):
            await one.write(binding, "key", str(number))  # the same size each time
            marks.append(await one.resource.write_mark(branch))
        assert len(set(marks)) == len(marks)
        assert await one.read(binding, "key") == "4"
        await one.resource.quiesce(branch)
        quiet = await one.resource.write_mark(branch)
        await one.resource.thaw(branch)
        await one.cut(branch)
        assert await one.read(binding, "key") == "4"
        assert await one.resource.write_mark(branch) == quiet
        await one.write(binding, "key", "5")
        assert await one.resource.write_mark(branch) != quiet

    async def test_digests_are_equal_exactly_when_contents_are(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        sealed = []
        for env, writes in {"a": "12", "b": "12", "c": "21", "d": "122"}.items():
            branch, binding = await one.open(base, env=env)
            for value in writes:  # as "12": first 1, then 2, the last one stays
                await one.write(binding, "key", value)
            sealed.append(await one.cut(branch))
        a, b, c, d = [await one.resource.digest(version) for version in sealed]
        assert a == b == d
        assert a != c
        assert len({version.version for version in sealed}) == 4

    async def test_diff_names_what_changed(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        first = await one.cut(branch)
        await one.write(binding, "key", "other")
        second = await one.cut(branch)
        assert await one.changes(base, base) == []
        assert await one.changes(first, first) == []
        assert any(line.startswith("added") and "key" in line for line in await one.changes(base, first))
        assert any(line.startswith("removed") and "key" in line for line in await one.changes(first, base))
        assert any(line.startswith("changed") and "key" in line for line in await one.changes(first, second))

    async def test_another_object_over_the_same_state_goes_on(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        digest = await one.resource.digest(sealed)
        await one.close(branch, binding)
        await one.resource.stop()

        two = drive()
        assert await two.base() == base
        assert await two.seen(sealed, "key") == "value"
        assert await two.seen(base, "key") is None
        assert await two.resource.digest(sealed) == digest
        branch, binding = await two.open(sealed)
        await two.write(binding, "key", "more")
        assert await two.seen(await two.cut(branch), "key") == "more"
        assert await two.seen(sealed, "key") == "value"

    async def test_inventory_reports_what_a_killed_engine_left(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        two = drive()
        await two.resource.start()
        assert await two.handles() == sorted([base, branch, sealed], key=repr)
        await two.resource.discard(branch)
        assert await two.handles() == sorted([base, sealed], key=repr)
        assert await two.seen(sealed, "key") == "value"

    async def test_inventory_leaves_other_journals_alone(self, drive: Drive) -> None:
        one, two = drive(), drive(OTHER_JOURNAL)
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        sealed = await one.cut(branch)
        theirs = await two.base()
        assert await two.handles() == [theirs]
        assert theirs.journal == OTHER_JOURNAL
        with pytest.raises(ForeignHandle):
            await two.resource.branch(sealed, Owner(env="thief", epoch=1))
        with pytest.raises(ForeignHandle):
            await two.resource.discard(branch)
        await two.resource.discard(theirs)
        assert await one.handles() == sorted([base, branch, sealed], key=repr)
        assert await one.seen(sealed, "key") == "value"

    async def test_cancellation_leaves_nothing_that_inventory_does_not_report(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value")
        for _ in range(3):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await one.resource.branch(base, Owner(env="cancelled", epoch=1))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await one.cut(branch)
            with anyio.move_on_after(0.001):
                await one.resource.branch(base, Owner(env="cancelled", epoch=2))
            with anyio.move_on_after(0.001):
                await one.cut(branch)
        await one.resource.thaw(branch)
        before = await one.handles()
        assert {handle.env for handle in before if isinstance(handle, Branch)} <= {"one", "cancelled"}
        for handle in before:
            if handle != branch:
                await one.resource.discard(handle)
        assert await one.handles() == [branch]
        assert await one.read(binding, "key") == "value"
        assert await one.seen(await one.cut(branch), "key") == "value"
        await one.close(branch, binding)

    async def test_errors_are_of_the_declared_kinds(self, drive: Drive) -> None:
        one = drive()
        branch, binding = await one.open(await one.base())
        await one.close(branch, binding)
        with pytest.raises(StateforkError):
            await one.resource.probe(binding)
        with pytest.raises(ResourceFailed):
            await one.resource.seal(branch)
        with pytest.raises(ResourceFailed):
            await one.resource.write_mark(branch)

    async def test_usage_is_told_and_its_strategy(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        branch, binding = await one.open(base)
        await one.write(binding, "key", "value" * 100)
        for handle in (branch, await one.cut(branch)):
            usage = await one.resource.usage(handle)
            assert usage.private_bytes >= 0
            assert usage.shared_bytes >= 0
        strategy = one.resource.strategy()
        assert strategy.name
        assert strategy.reason

    async def test_many_uses_leave_as_much_as_one(self, drive: Drive) -> None:
        one = drive()
        base = await one.base()
        counts = set()
        for _ in range(self.uses):
            branch, binding = await one.open(base)
            await one.write(binding, "key", "value")
            sealed = await one.cut(branch)
            await one.close(branch, binding)
            await one.resource.discard(sealed)
            await one.settle()
            counts.add((len(await one.handles()), _files_below(one.bench.state)))
        assert len(counts) == 1


def _files_below(state: Path) -> int:
    return sum(1 for _ in state.rglob("*"))
