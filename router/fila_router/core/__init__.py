"""What a router decides, as plain objects: no sockets, no clock, no logging; time is the argument ``now_ms``.

Read in this order: :mod:`in_flight` (requests that a worker owes an answer), :mod:`worker` (one of them, as seen from
here), :mod:`routing` (shard → worker, with epochs), :mod:`fan_in` (one question to every worker), :mod:`outbox` and
:mod:`router`, which joins them.
"""
