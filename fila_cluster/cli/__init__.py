"""The ``fila-cluster`` command: one file per subcommand, imported only when it is the one that is run."""

from fila_cluster.cli.root import main

__all__ = ["main"]
