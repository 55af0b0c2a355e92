"""The decisions of a router, as plain objects: no sockets, no clock, no logging; time is the argument ``now_ms``.

Read in this order: :mod:`in_flight` (requests that a worker has to answer), :mod:`worker_state` (one worker as the router
sees it), :mod:`routing` (shard to worker, with epochs), :mod:`fan_in` (one question to every worker), :mod:`answers` (the
router's own answers), :mod:`sessions` (which client is on which connection), :mod:`unread` (what a client was sent and has
not read), :mod:`limits`; :mod:`bucket`, :mod:`token_bank` and :mod:`grant_updates` (token buckets), :mod:`holding` (which of
several routers has them), :mod:`config_replication` (the runtime config's way to all workers), :mod:`membership` (workers come and
go), and :mod:`router`, which joins them.
"""
