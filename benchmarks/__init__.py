"""Benchmarks, run by `make bench`; each prints its figures and writes them to results/."""
