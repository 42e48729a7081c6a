"""A view that looks for a marker in the whole process: what modules hold, and every dict and list there is."""

import gc
import sys
import types
import urllib.parse

from django.http import JsonResponse

DEPTH = 7
ITEMS_MAX = 2000


def _is(value, *kinds):
    """By the real type: asking a lazy object for its class would make it."""
    return issubclass(type(value), kinds)


def _text(value):
    if _is(value, bytes, bytearray):
        return bytes(value).decode("latin-1")
    return value if _is(value, str) else ""


def _children(value):
    """What an object holds, each with a name, without asking the object itself."""
    if _is(value, dict):
        for key, item in list(dict.items(value))[:ITEMS_MAX]:
            yield "key", key
            yield (key if _is(key, str) else type(key).__name__), item
    elif _is(value, list, tuple, set, frozenset):
        for item in list(value)[:ITEMS_MAX]:
            yield "item", item
    elif type(value).__name__ == "_lru_cache_wrapper":
        for item in gc.get_referents(value):
            yield "cached", item
    elif _is(value, type):
        yield from list(vars(value).items())
    elif not _is(value, types.ModuleType):
        try:
            yield from list(object.__getattribute__(value, "__dict__").items())
        except (AttributeError, TypeError):
            return


class Walk:
    """Follows what modules hold, and notes the paths that lead to the marker."""

    def __init__(self, marker):
        self.marker = marker
        self.paths = []
        self.seen = {}  # keeps what was seen, so that no other object gets its id meanwhile

    def visit(self, value, depth, path):
        """One object and what it holds."""
        if depth < 0 or id(value) in self.seen or value is self.marker:
            return
        self.seen[id(value)] = value
        if self.marker in _text(value):
            self.paths.append(path)
            return
        for name, item in _children(value):
            self.visit(item, depth - 1, f"{path}.{name}")


def _holders(marker):
    """The types of whatever in the process holds the marker directly."""
    found = []
    for value in gc.get_objects():
        for item in gc.get_referents(value):
            # containers of plain values are not tracked by the collector: they are found through who holds them
            plain = gc.get_referents(item) if _is(item, dict, tuple) and not gc.is_tracked(item) else (item,)
            found += [type(value).__name__ for part in plain if part is not marker and marker in _text(part)]
    return found


def scan(request):
    """The marker comes in two parts, so that this request does not hold it itself."""
    marker = request.GET["a"] + request.GET["b"]
    urllib.parse.clear_cache()  # of a pure function: nobody can read there what somebody else asked
    gc.collect()
    walk = Walk(marker)
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            walk.visit(value, DEPTH, f"{name}.{attribute}")
    paths = walk.paths
    del walk
    return JsonResponse({"paths": paths, "holders": _holders(marker)})
