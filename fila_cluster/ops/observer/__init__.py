"""The observer: an ordinary client of the router that asks for all counters every second, and publishes them.

Routers and workers only count; everything that costs time (text, HTTP, exports) happens here, so that a scrape disturbs no
queue. Read in this order: :mod:`sources` (what has numbers), :mod:`catalogue` (the name of each number), :mod:`samples` (the
numbers under their names), :mod:`prometheus` and :mod:`otlp` (the two exports), :mod:`app` (HTTP), :mod:`serving` (the whole
process). :mod:`door` takes messages in and hands them out by HTTP. The question itself is in :mod:`fila_cluster.ops.analysis.watch`.
"""
