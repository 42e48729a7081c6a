"""What differs between two namespaces, key by key."""

from __future__ import annotations

from collections.abc import Iterator

from statefork.adapters.resources.valkey.dumps import Item
from statefork.engine.ports import Change

_SHOWN_MAX = 1000  # characters of a value


def changes_between(old: Iterator[Item], new: Iterator[Item]) -> Iterator[Change]:
    """Both in the order of their names."""
    one, two = next(old, None), next(new, None)
    while one is not None or two is not None:
        if two is None or (one is not None and one.name < two.name):
            assert one is not None, "one of them is there"
            yield Change(kind="removed", name=_text(one.name), before=_shown(one))
            one = next(old, None)
        elif one is None or two.name < one.name:
            yield Change(kind="added", name=_text(two.name), after=_shown(two))
            two = next(new, None)
        else:
            if one != two:
                yield Change(kind="changed", name=_text(one.name), before=_shown(one), after=_shown(two))
            one, two = next(old, None), next(new, None)


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _shown(item: Item) -> str:
    value = item.value
    told = f"{item.kind} {_text(value) if isinstance(value, bytes) else repr(value)}"
    return (f"{told} (expires)" if item.expires else told)[:_SHOWN_MAX]
