"""The control door of a running engine: a Unix socket in the state directory, for the command line and for scripts."""
