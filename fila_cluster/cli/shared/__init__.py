"""What several commands use: the global options and the output, tables, types of parameters, JSON lines, lazy groups."""
