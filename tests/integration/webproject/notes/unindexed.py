"""The same project without the search index being kept up to date, for tests that write from several threads at once.

Whoosh lists a directory and then opens the newest table of contents that it saw there. A writer who commits in between
removes that file, and the request gets a FileNotFoundError: on any server, with or without an engine beside it.
"""

from notes.settings import *  # noqa: F403 - settings are given on

HAYSTACK_SIGNAL_PROCESSOR = "haystack.signals.BaseSignalProcessor"
