"""What goes wrong with rollouts, beyond what engines raise."""

from __future__ import annotations

from statefork.journal.errors import StateforkError


class TasksUnreadable(StateforkError):
    """A task file can't be read, or a task in it can't be rolled out as it stands; each problem has its place."""

    code = "tasks_unreadable"

    @property
    def problems(self) -> tuple[str, ...]:
        """Each that is wrong."""
        return tuple(self.message.splitlines())


class PolicyFailed(StateforkError):
    """A policy, or a judge, is not there, raised, or gave what is no action. ``facts``: task, attempt."""

    code = "policy_failed"


class RolloutsDiffer(StateforkError):
    """The directory holds rollouts of another policy, world or task file, or is in use. Nothing was written."""

    code = "rollouts_differ"
