"""Analysis of a cluster's numbers: pure functions of one or two snapshots of all counters.

Read in this order: :mod:`watch` (asks for the counters), :mod:`rates` (what happens, and how long it takes), :mod:`readiness`
(whether every shard serves), :mod:`attention` (what is wrong, and the remedies), :mod:`rows` (lists and totals),
:mod:`history` (half an hour).
"""
