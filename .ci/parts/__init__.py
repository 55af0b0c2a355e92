"""The parts of the docs that are made from code: each function returns one part as Markdown."""
