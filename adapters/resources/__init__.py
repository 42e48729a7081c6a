"""The driven side: each module implements :class:`statefork.engine.ports.Resource` for one kind of state."""
