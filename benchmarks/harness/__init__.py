"""What all benchmarks share: systems, client processes, rounds, checked messages, results, tables, plots, pages."""
