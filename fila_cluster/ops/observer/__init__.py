"""The observer: an ordinary client of the router that asks for all counters every second, and publishes them.

Routers and workers only count; everything that costs time (text, HTTP, exports) happens here, so that a scrape does not delay
queues. Read in this order: :mod:`sources` (the sources of numbers), :mod:`catalogue` (the names of all numbers, and samples),
:mod:`prometheus` and :mod:`otlp` (the two exports), :mod:`app` (HTTP), :mod:`serving` (the whole process). :mod:`door` takes
and delivers messages by HTTP. The request to the cluster is in :mod:`fila_cluster.ops.analysis.watch`.
"""
