"""The ``fila-cluster`` command: one module per subcommand, imported only when that subcommand runs."""

from fila_cluster.cli.root import main

__all__ = ["main"]
