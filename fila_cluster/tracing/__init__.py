"""Traces from the producer to the consumer, across processes and restarts.

The message has its trace (W3C ``traceparent``, a header) and its lifecycle (when it was enqueued, leased, tried). So
producers and consumers make all spans, with the true times, without work of the broker. Reading order: :mod:`spans` (headers
and records) · :mod:`tracer` (the client's interface; on and off).

Needs OpenTelemetry's API only; the application's own SDK decides which spans are sampled, and where they go. Left out: spans
of calls without messages (they would repeat the metrics), and of messages that were prefetched and given back before they
were taken: that time belongs to their next ``dwell``.
"""

from fila_cluster.tracing.tracer import instrument, processing, uninstrument

__all__ = ["instrument", "processing", "uninstrument"]
