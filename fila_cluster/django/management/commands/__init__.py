"""``fila_worker`` and ``fila_prune``."""
