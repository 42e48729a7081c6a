"""What holds for an environment: what was chosen for it, else what the contract says that the engine runs.

What is there for one command alone keeps to itself: a snapshot of it is asked for, and all its generations stay. A text
that this statefork does not know, of a later one, takes no snapshots and lets nothing go. Pure.
"""

from __future__ import annotations

from statefork.engine.capsule import Capsule
from statefork.engine.contract import Contract
from statefork.engine.errors import ContractError
from statefork.engine.policy import FORMS, ON_DEMAND, Choice, SnapshotPolicy, parse_policy
from statefork.engine.retention import FORMS as RETENTIONS
from statefork.engine.retention import KEEP_ALL, Retention, parse_retention


def snapshots_of(capsule: Capsule, contract: Contract) -> SnapshotPolicy:
    """When its present is published by itself."""
    if capsule.snapshots.text:
        return parse_policy(capsule.snapshots.text) or ON_DEMAND
    return ON_DEMAND if capsule.helps else contract.snapshots


def retention_of(capsule: Capsule, contract: Contract) -> Retention:
    """Which of its generations stay."""
    if capsule.retention.text:
        return parse_retention(capsule.retention.text) or KEEP_ALL
    return KEEP_ALL if capsule.helps else contract.retention


def check_snapshots(text: object) -> SnapshotPolicy:
    """The snapshot policy that a text means. Raises ContractError with those there are."""
    found = parse_policy(text)
    if found is None:
        raise ContractError(f"a snapshot policy is {FORMS}, not {text!r}", key="snapshots")
    return found


def check_retention(text: object) -> Retention:
    """The retention that a text means. Raises ContractError with those there are."""
    found = parse_retention(text)
    if found is None:
        raise ContractError(f"a retention is {RETENTIONS}, not {text!r}", key="retention")
    return found


def checked(choice: Choice) -> Choice:
    """The choice in the words that its policies are told in. Raises ContractError for a text that is no policy."""
    return Choice(
        snapshots=str(check_snapshots(choice.snapshots)) if choice.snapshots else choice.snapshots,
        retention=str(check_retention(choice.retention)) if choice.retention else choice.retention,
    )
