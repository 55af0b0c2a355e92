"""The work of ``fila-cluster spark``: files into a queue, a queue into files, and the session that both run in."""
