"""What may happen: contracts, capsules, leases and the transitions between generations.

This package imports only :mod:`statefork.journal`.
"""
