"""Load, enemies and probes for the benchmarks of faults."""
