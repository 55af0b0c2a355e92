"""Traces: one from the producer to the consumer, across processes and restarts.

The message carries its trace (W3C ``traceparent``, a header) and its lifecycle (when it was enqueued, leased, tried), so all
spans are made at the edges, by producers and consumers, with the true times; the broker does nothing for them. Reading order:
:mod:`carrier` (what is in a message) · :mod:`spans` (what is recorded) · :mod:`tracer` (what the client calls; on and off).

Needs OpenTelemetry's API only; which spans are sampled, and where they go, is the application's own SDK's business. Left out:
spans for calls that move no message (they would say what metrics say), and for messages that were prefetched and given back
before anybody took them: that time belongs to their next ``dwell``.
"""

from fila_cluster.tracing.tracer import instrument, processing, uninstrument

__all__ = ["instrument", "processing", "uninstrument"]
