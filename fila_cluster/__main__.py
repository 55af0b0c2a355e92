"""``python -m fila_cluster``: the ``fila-cluster`` command."""

from fila_cluster.cli import main

if __name__ == "__main__":
    main()
