"""BrowserGym's tasks and agents on environments of statefork: see :mod:`statefork.browsergym`."""
