"""What a router decides, as plain objects: no sockets, no clock, no logging; time is the argument ``now_ms``.

Read in this order: :mod:`in_flight` (requests that a worker owes an answer), :mod:`worker_state` (one worker, as seen from here), :mod:`routing`
(shard to worker, with epochs), :mod:`fan_in` (one question to every worker), :mod:`answers` (what the router says itself), :mod:`sessions` (which client
is on which connection), :mod:`unread` (what it was sent and has not taken), :mod:`limits`; :mod:`bucket`, :mod:`token_bank` and :mod:`grant_updates`
(limits), :mod:`config_replication` (how the runtime config reaches all), :mod:`membership` (workers come and go), and :mod:`router`, which joins them.
"""
