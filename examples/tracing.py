"""Follow one trace through two queues (checkout → orders → invoices), and print it as a tree with the time of each step.

fila-cluster up               # in one terminal
python examples/tracing.py    # in another

Here the three programs share a process, and their spans stay in memory. In processes of their own they make the same trace. A
real program gives the SDK an exporter (``OTLPSpanExporter``) instead of reading the spans itself.
"""

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fila_cluster import Client
from fila_cluster.tracing import instrument, processing

tracer = trace.get_tracer("shop")


def check_out(client: Client) -> None:
    """Enqueue an order, while the customer waits."""
    with tracer.start_as_current_span("checkout"):
        client.enqueue("orders", b"3 books", fairness_key="acme")


def take_orders(client: Client) -> None:
    """Enqueue an invoice for each order."""
    for order in client.receive("orders", wait=5):
        with processing(order), tracer.start_as_current_span("price"):
            client.enqueue("invoices", b"42.00", fairness_key=order.fairness_key)
        order.ack()


def print_invoices(client: Client) -> None:
    """Fail the first attempt of each invoice, and ack the second."""
    for invoice in client.receive("invoices", wait=5):
        invoice.nack("no paper")
    for invoice in client.receive("invoices", wait=5):
        invoice.ack()


def show(spans: tuple[ReadableSpan, ...], parent: int | None = None, depth: int = 0) -> None:
    """Print the spans below ``parent`` as a tree."""
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent and span.context:
            took_ms = ((span.end_time or 0) - (span.start_time or 0)) / 1_000_000
            outcome = (span.attributes or {}).get("fila.outcome", "")
            print(f"{'  ' * depth + span.name:<32} {took_ms:8.2f} ms  {outcome}".rstrip())
            show(spans, span.context.span_id, depth + 1)


def main() -> None:
    """Trace one order."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    instrument()
    with Client() as client:
        for queue in ("orders", "invoices"):
            client.create_queue(queue)
        check_out(client)
        take_orders(client)
        print_invoices(client)
        for queue in ("orders", "invoices"):
            client.delete_queue(queue)
    finished = spans.get_finished_spans()
    show(finished)
    print(f"{len(finished)} spans, {len({span.context.trace_id for span in finished if span.context})} trace")


if __name__ == "__main__":
    main()
