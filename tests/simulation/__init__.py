"""A whole cluster in one process, on a virtual clock, replayed from one seed. See README.md."""
