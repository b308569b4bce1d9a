"""A Flower app for tests: what a client sees is written down, so that the ledger can be compared with it."""
