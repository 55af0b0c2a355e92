"""Benchmarks: one harness, one command for each: ``python -m benchmarks NAME``."""
