"""The state store: a file system with reflinks in a file, for state directories on one that has none."""
