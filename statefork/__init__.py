"""statefork: share the runtime, fork the state."""
