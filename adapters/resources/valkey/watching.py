"""What the server says of every change of a key: write marks, and which keys a namespace has.

The server publishes a message for each change (keyspace notifications) while it carries the command out, before the
command is answered, and a connection gets its messages in order. So who publishes a note of his own and waits until it
comes back has seen everything before it. A connection that was lost may have missed something: then nothing is known of
any namespace any more, and every mark is another.

Consumer groups of streams are the one thing that changes without a message; they are read instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterable
from typing import Any

from redis import exceptions

from statefork.adapters.resources.valkey.asking import Admin, batches
from statefork.engine.errors import RuntimeDied

_CHANNEL = b"__keyspace@0__:"
_NOTE = b"!note!"
_SEEN_S_MAX = 10.0
_AGAIN_S = 0.02
_LOOK_UP_S = 0.2  # after so long without a message it looks whether it is to stop
_OF_ANY_TYPE = frozenset({b"restore", b"rename_to", b"copy_to"})


class Namespace:
    """What was seen of one namespace since it was watched."""

    def __init__(self) -> None:
        self.changes = 0
        self.keys: set[bytes] | None = set()  # all there are, and some that were; None: not known
        self.streams: set[bytes] = set()
        self.unsure: set[bytes] = set()  # may be streams

    def note(self, key: bytes, event: bytes) -> None:
        """One change."""
        self.changes += 1
        if self.keys is not None:
            self.keys.add(key)
        if event.startswith(b"x"):
            self.streams.add(key)
        elif event in _OF_ANY_TYPE:
            self.unsure.add(key)


class Watching:
    """One subscriber for all namespaces of a resource. The methods block; several threads may call them."""

    def __init__(self, resource: str, admin: Admin, all_keys: str) -> None:
        self._resource = resource
        self._admin = admin
        self._start = _CHANNEL + all_keys.encode()
        self._seen = threading.Condition()
        self._spaces: dict[bytes, Namespace] = {}
        self._life = secrets.token_hex(4)
        self._connections = 0
        self._notes: set[bytes] = set()
        self._stopping = threading.Event()
        self._pubsub = admin.pubsub()
        self._thread = threading.Thread(target=self._run, name=f"changes of {resource}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the subscription. Idempotent."""
        self._stopping.set()
        with contextlib.suppress(exceptions.RedisError, OSError):
            self._publish(_NOTE + b":stop")  # it wakes up sooner
        self._thread.join()
        self._pubsub.close()

    # -- the subscriber ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._pubsub.psubscribe(self._start + b"*")
                while not self._stopping.is_set():
                    message = self._pubsub.get_message(timeout=_LOOK_UP_S)
                    if message is not None:
                        self._take(message)
            except (exceptions.RedisError, OSError):
                self._lose()
                self._stopping.wait(_AGAIN_S)

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "psubscribe":
            with self._seen:
                self._connections += 1
                self._forget_keys()
                self._seen.notify_all()
            return
        token, _, key = message["channel"][len(self._start) :].partition(b":")
        with self._seen:
            if token == _NOTE:
                self._notes.add(key)
                self._seen.notify_all()
            elif token in self._spaces:
                self._spaces[token].note(key, message["data"])

    def _lose(self) -> None:
        with contextlib.suppress(exceptions.RedisError, OSError):
            self._pubsub.reset()
        with self._seen:
            self._forget_keys()

    def _forget_keys(self) -> None:
        """Messages may have been missed."""
        for space in self._spaces.values():
            space.keys = None
            space.changes += 1

    def _publish(self, note: bytes) -> None:
        self._admin.ask("PUBLISH", self._start + note, b"")

    def _catch_up(self) -> None:
        """Return when every change before now was seen. Raises RuntimeDied where the server does not tell."""
        note = secrets.token_hex(8).encode()
        with self._seen:
            if not self._seen.wait_for(lambda: self._connections, _SEEN_S_MAX):
                raise self._silent()
        while not self._came_back(note):
            pass  # the connection was lost meanwhile, and is there again

    def _came_back(self, note: bytes) -> bool:
        with self._seen:
            connections = self._connections
        self._publish(_NOTE + b":" + note)
        with self._seen:
            self._seen.wait_for(lambda: note in self._notes or self._connections != connections, _SEEN_S_MAX)
            if note in self._notes:
                self._notes.discard(note)
                return True
            if self._connections == connections:
                raise self._silent()
            return False

    def _silent(self) -> RuntimeDied:
        return RuntimeDied(f"{self._resource}: the server does not tell of changes any more", resource=self._resource)

    # -- namespaces -------------------------------------------------------------------------------------------

    def watch(self, token: str) -> None:
        """From now on, for an empty namespace."""
        self._catch_up()
        with self._seen:
            self._spaces[token.encode()] = Namespace()

    def leave(self, token: str) -> None:
        """No more. Idempotent."""
        with self._seen:
            self._spaces.pop(token.encode(), None)

    def keys(self, token: str, prefix: str) -> set[bytes]:
        """The names of all keys there are now, perhaps of more."""
        self._catch_up()
        with self._seen:
            space = self._spaces.get(token.encode())
            known = None if space is None or space.keys is None else set(space.keys)
            changes = 0 if space is None else space.changes
        if known is not None:
            return known
        found = self._admin.keys(prefix)
        self._catch_up()
        with self._seen:
            if space is not None:
                space.unsure |= found
                if space.changes == changes:
                    space.keys = set(found)
        return found

    def count(self, token: str) -> int:
        """How many changes were seen."""
        with self._seen:
            space = self._spaces.get(token.encode())
            return space.changes if space is not None else 0

    def settle(self, token: str, keys: Iterable[bytes], changes: int) -> None:
        """These are all keys there were, as somebody found out, unless more changes were seen since."""
        with self._seen:
            space = self._spaces.get(token.encode())
            if space is not None and space.keys is not None and space.changes == changes:
                space.keys = set(keys)

    def mark(self, token: str, prefix: str) -> str:
        """Differs whenever something in the namespace was changed in between."""
        if self._unknown(token):
            self.keys(token, prefix)  # so that streams are known again
        self._catch_up()
        with self._seen:
            space = self._spaces[token.encode()]
            unsure = sorted(space.unsure)
        start = prefix.encode()
        for batch in batches(unsure):
            kinds = self._admin.ask_all(("TYPE", start + key) for key in batch)
            with self._seen:
                space.streams |= {key for key, kind in zip(batch, kinds, strict=True) if kind == b"stream"}
                space.unsure -= set(batch)
        with self._seen:
            streams = sorted(space.streams)
            count = f"{self._life}.{self._connections}.{space.changes}"
        return f"{count}.{self._groups(start, streams)}" if streams else count

    def _unknown(self, token: str) -> bool:
        with self._seen:
            return self._spaces[token.encode()].keys is None

    def _groups(self, start: bytes, streams: list[bytes]) -> str:
        """Of all that consumer groups know."""
        whole = hashlib.sha256()
        for batch in batches(streams):
            kinds = self._admin.ask_all(("TYPE", start + key) for key in batch)
            there = [key for key, kind in zip(batch, kinds, strict=True) if kind == b"stream"]
            groups = self._admin.ask_all(("XINFO", "GROUPS", start + key) for key in there)
            grouped = [key for key, found in zip(there, groups, strict=True) if found]
            for dump in self._admin.ask_all(("DUMP", start + key) for key in grouped):
                whole.update(hashlib.sha256(dump or b"").digest())
        return whole.hexdigest()[:16]
