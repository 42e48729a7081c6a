"""Help with writing contracts: what tasks read, whether a contract covers it, a first contract, what a run shows."""
