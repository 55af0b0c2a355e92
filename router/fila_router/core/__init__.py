"""What a router decides, as plain objects: no sockets, no clock, no logging; time is the argument ``now_ms``.

Read in this order: :mod:`in_flight` (requests that a worker owes an answer), :mod:`worker` (one of them, as seen from
here), :mod:`routing` (shard → worker, with epochs), :mod:`fan_in` (one question to every worker), :mod:`outbox` (what is to be
sent), :mod:`sessions` (which client is on which connection), :mod:`unread` (what it was sent and has not taken), :mod:`limits`; :mod:`account`, :mod:`bucket` and :mod:`token_bank` (rate limits of the whole cluster); :mod:`rendezvous` (how the runtime
config comes to everybody), :mod:`parks`, :mod:`relay` (what workers say to each other), :mod:`membership` (who comes and
goes), and :mod:`router`, which joins them.
"""
