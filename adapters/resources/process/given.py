"""File trees that are given to the user who works in them: an account, or one of each environment's own."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from statefork.adapters.resources.common import pulse
from statefork.adapters.resources.files.resource import FilesResource, TreeOptions
from statefork.adapters.resources.files.strategy import TreeStrategy
from statefork.adapters.resources.files.tree import Index, scan
from statefork.adapters.resources.ledger import PASSAGE
from statefork.adapters.resources.process.accounts import account_of, check_reach, give
from statefork.adapters.resources.process.options import OWN_USER
from statefork.engine.ports import Services
from statefork.journal.values import Sealed


class GivenTrees(FilesResource):
    """Trees over a base, which may be empty; ``user`` as in :func:`accounts.account_of`.

    ``by_path``: the user goes to its tree by its path, so that it must be able to pass through the state directory.
    """

    def __init__(self, name: str, options: TreeOptions, services: Services, *, user: str, by_path: bool = True) -> None:
        super().__init__(name, options, services)
        self._user = user
        self._by_path = by_path
        if not options.base:
            self._base = self._ledger.root / "empty"
        if user and by_path:  # each passes through to its own directory, and finds no other
            self._ledger.rights |= {"": PASSAGE, "branches": PASSAGE}

    def _trees(self) -> TreeStrategy:
        trees = super()._trees()
        if self._user:
            trees.prepare = self._give
        return trees

    def _give(self, tree: Path) -> None:
        """A tree that was just opened, to its user."""
        account = account_of(self.name, self._user)
        assert account is not None, "there is a user, so there is an account"
        if tree.stat().st_uid != account.uid:
            give(tree, account, pulse)
        if self._by_path:
            os.chown(tree.parent, -1, account.gid)  # siblings may not even enter; nor does it own record and log
            tree.parent.chmod(0o710)
            check_reach(self.name, account, tree.parent)

    def _provision(self) -> Sealed:
        if not self.options.base:
            self._base.mkdir(parents=True, exist_ok=True)
        return super()._provision()

    def _scanned(self) -> Index:
        """The base's files, as the user has them: no branch has to give them to it then."""
        index = scan(self._base, pulse=pulse)
        if self._user and self._user != OWN_USER:
            account = account_of(self.name, self._user)
            assert account is not None, "there is a user, so there is an account"
            given = {
                path: msgspec.structs.replace(entry, uid=account.uid, gid=account.gid)
                for path, entry in index.entries.items()
            }
            return msgspec.structs.replace(index, entries=given)
        return index
