"""Example worlds: contract, set-up and seed of real applications."""
