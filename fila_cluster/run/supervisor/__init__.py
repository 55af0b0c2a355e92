"""``fila-cluster up`` and ``node``: one process that starts, watches, restarts and stops the others. Begin with :mod:`up`."""


class CannotStartError(Exception):
    """One line for a person: the obstacle and the remedy. Nothing was changed."""
