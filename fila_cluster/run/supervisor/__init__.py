"""``fila-cluster up`` and ``node``: one process that starts, watches, restarts and stops the others.

Read in this order: :mod:`data_dir` (its owner and its shards), :mod:`layout` (what to start), :mod:`endpoints` (where it
listens), :mod:`child` (one process, its signs of life, its restarts), :mod:`ready_probe` (whether the cluster serves),
:mod:`supervisor` (the loop), :mod:`up` (all of it, checks first), :mod:`member` and :mod:`node` (one host of several),
:mod:`standalone` (one part without a supervisor).
"""


class CannotStartError(Exception):
    """One line for a person: the obstacle and the remedy. Nothing was changed."""
