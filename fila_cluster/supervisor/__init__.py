"""``fila-cluster up``: one process that starts, watches, restarts and stops the others, and serves nothing itself.

Read in this order: :mod:`data_dir` (whose it is, how many shards), :mod:`layout` (what to start), :mod:`meeting` (where
they meet), :mod:`backoff` and :mod:`child` (one process and its restarts), :mod:`liveness` (whether it hangs), :mod:`readiness` (when it serves),
:mod:`supervisor` (the loop), :mod:`up` (all of it, checks first), :mod:`alone` (one part without a supervisor).
"""
