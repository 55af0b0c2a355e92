"""Spans of this process, kept for a test to look at."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import Tracer

from fila_cluster.tracing import instrument, uninstrument


class Counting(SpanProcessor):
    """Counts the spans that are open."""

    def __init__(self) -> None:
        self.open = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """One more."""
        self.open += 1

    def on_end(self, span: ReadableSpan) -> None:
        """One less."""
        self.open -= 1


class Spans:
    """A provider, and what came out of it."""

    def __init__(self, sampler: Sampler) -> None:
        self.provider = TracerProvider(sampler=sampler)
        self.counting = Counting()
        self.provider.add_span_processor(self.counting)
        self._kept = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    @property
    def tracer(self) -> Tracer:
        """The application's own."""
        return self.provider.get_tracer("application")

    def ended(self, first_word: str = "") -> list[ReadableSpan]:
        """All spans that have ended, in this order, or those whose names start so."""
        return [span for span in self._kept.get_finished_spans() if span.name.split(" ")[0] == first_word or not first_word]

    def names(self) -> list[str]:
        """Of all that have ended, in order."""
        return [span.name for span in self.ended()]

    def one(self, first_word: str) -> ReadableSpan:
        """The only one whose name starts so."""
        (span,) = self.ended(first_word)
        return span

    def clear(self) -> None:
        """Forget what has ended."""
        self._kept.clear()


@contextmanager
def instrumented(sampler: Sampler = ALWAYS_ON) -> Iterator[Spans]:
    """Trace this process for the length of a block; nothing stays open."""
    spans = Spans(sampler)
    instrument(spans.provider)
    try:
        yield spans
    finally:
        uninstrument()
        spans.provider.shutdown()
    assert spans.counting.open == 0


def parent_id(span: ReadableSpan) -> int | None:
    """The id of a span's parent."""
    return span.parent.span_id if span.parent else None


def span_id(span: ReadableSpan) -> int:
    """Its own."""
    return span.context.span_id


def outcome(span: ReadableSpan) -> object:
    """How it says that a delivery ended."""
    return (span.attributes or {}).get("fila.outcome")
