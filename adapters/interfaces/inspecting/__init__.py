"""Inspect (inspect-ai): statefork as a sandbox provider. Importing :mod:`.sandbox` registers it."""
