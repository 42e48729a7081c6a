"""The command line: a module per verb."""
