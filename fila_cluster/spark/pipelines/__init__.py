"""What ``fila-cluster spark`` runs: files into a queue, a queue into files, and the session that both run in."""
