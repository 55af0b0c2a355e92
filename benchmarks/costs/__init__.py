"""Benchmarks of what is beside the broker: metrics, tracing, Spark."""
