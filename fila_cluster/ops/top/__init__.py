"""``fila-cluster top``: the cluster, live, in a terminal. An ordinary client that asks every few seconds."""
