"""``fila-cluster spark report``: a queue's dead letters, waiting times and shares, as numbers and as a page."""
