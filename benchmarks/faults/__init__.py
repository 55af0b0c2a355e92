"""Benchmarks of what goes wrong: kills, pauses, overload, clients that never read."""
