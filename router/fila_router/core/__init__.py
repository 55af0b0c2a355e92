"""The decisions of a router, as plain objects: no sockets, no clock, no logging. Time is the argument ``now_ms``.

Read in this order: :mod:`worker_state` (one worker as the router sees it), :mod:`routing` (shard to worker, with epochs),
:mod:`sessions` (clients and their connections), :mod:`unread` (bytes that a client has not read), :mod:`answers` (the
router's own frames), :mod:`limits`, and :mod:`router`, which decides about each frame.

The rest are features, see :mod:`feature`: :mod:`membership` (workers register, return, leave and are lost), :mod:`fan_in`
(one question to all workers), :mod:`config_replication` (the runtime config), :mod:`moves` (shards that go to another worker),
:mod:`connections` (clients, for operators), :mod:`placements` (the workers, for clients), :mod:`keys` (API keys), and
:mod:`tokens` (the token bank, and parked throttle keys).
"""
