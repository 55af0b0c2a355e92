"""Traces from the producer to the consumer, across processes and restarts.

The message carries its trace (W3C ``traceparent``, a header) and its lifecycle (when it was enqueued, leased, tried). So all
spans are made at the edges, by producers and consumers, with the true times; the broker does nothing for them. Reading order:
:mod:`carrier` (the headers) · :mod:`spans` (what is recorded) · :mod:`tracer` (the client's interface; on and off).

Needs OpenTelemetry's API only; the application's own SDK decides which spans are sampled, and where they go. Left out:
spans for calls that move no message (they would repeat the metrics), and for messages that were prefetched and given back
before they were taken: that time belongs to their next ``dwell``.
"""

from fila_cluster.tracing.tracer import instrument, processing, uninstrument

__all__ = ["instrument", "processing", "uninstrument"]
