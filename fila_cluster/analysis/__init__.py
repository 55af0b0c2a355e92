"""What the numbers of a cluster mean, for all who show them: pure functions of one look at it, or of two.

Read in this order: :mod:`rates` (what happens, and how long it takes), :mod:`readiness` (whether every shard serves), :mod:`attention` (what is wrong, and
what to do), :mod:`rows` with :mod:`memory` (lists and totals), :mod:`history` (half an hour).
"""
