"""``fila-cluster up``: one process that starts, watches, restarts and stops the others.

Read in this order: :mod:`data_dir` (whose it is, how many shards), :mod:`layout` (what to start), :mod:`endpoints` (where it listens), :mod:`child` (one
process, whether it lives, its restarts), :mod:`readiness` (whether the cluster serves), :mod:`supervisor` (the loop), :mod:`up` (all of it, checks
first), :mod:`standalone` (one part without a supervisor).
"""
