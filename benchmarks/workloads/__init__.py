"""The benchmarks of the broker, by what they measure."""
