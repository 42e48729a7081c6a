"""The settings under test with one guard of the server removed: ``NOTES_WITHOUT=module:function`` becomes a no-op.

The web tests use it to see each check fail where its guard is missing. ``NOTES_SETTINGS`` names other settings.
"""

import importlib
import os

globals().update(vars(importlib.import_module(os.environ.get("NOTES_SETTINGS", "notes.settings"))))

module, _, name = os.environ["NOTES_WITHOUT"].partition(":")
owner = importlib.import_module(f"statefork.adapters.resources.web.{module}")
*path, last = name.split(".")
for part in path:
    owner = getattr(owner, part)
assert callable(getattr(owner, last))
setattr(owner, last, lambda *args, **kwargs: None)
