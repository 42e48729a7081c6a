"""Deterministic simulation: the real engine in a lying world, one seed for one run.

``statefork simulate`` is the command line for it; docs/design/simulation.md tells what is simulated and what is not.
"""
