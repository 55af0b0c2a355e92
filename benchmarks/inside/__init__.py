"""Benchmarks of parts: a worker's turn, the router's hop, the hook engine."""
