"""What the numbers of a cluster mean, for all who show them: pure functions of one look at it, or of two, and what is kept of more.

Read in this order: :mod:`rates` and :mod:`totals` (what happens), :mod:`quantiles` (how long things took),
:mod:`attention` (what is wrong, and what to do), :mod:`rows` with :mod:`memory` (lists), :mod:`history` (half an hour). A look is what ``GetMetrics`` answers; the time that has passed is told, not asked.
"""
