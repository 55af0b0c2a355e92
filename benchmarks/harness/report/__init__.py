"""Results of benchmarks: files, tables, plots, the page."""
