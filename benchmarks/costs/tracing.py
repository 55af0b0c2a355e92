"""Measure what tracing costs: throughput without instrumentation, with nothing sampled, and with 1 % sampled, in turns.

One process is producer and consumer at once, in two ways: in batches (``enqueue_many`` of 100, ``receive``, ``ack`` of all),
and one by one (``enqueue``, ``consume``, ``delivery.ack()``, 64 under way), where each call may become a span. Sampled spans
go through the SDK's batch processor to an exporter that drops them. The CPU time is that of this process: noise of the
machine does not change it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.processes import Gate, Spent, together
from benchmarks.harness.report.spread import ratios
from benchmarks.harness.workload import Benchmark, Run, choice, number
from fila_cluster import AsyncClient, Message
from fila_cluster.tracing import instrument, uninstrument

BATCH = 100
IN_FLIGHT = 8
ONE_BY_ONE = 64
HEADERS = {"content-type": "application/json", "tenant": "acme"}
PAYLOAD = b"x" * 1024
KINDS = {"not instrumented": None, "0 % sampled": 0.0, "1 % sampled": 0.01}
Work: TypeAlias = Callable[[AsyncClient, AsyncClient, int], Awaitable[None]]


COLUMN = "fila-cluster"
QUEUES = ("batches", "singles")
RATES, COSTS = "Messages a second, with tracing", "CPU time of the clients for a message"
LOST, MORE, SPANS = "Rate lost", "CPU time of the clients for a message, more", "Spans exported"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages in batches, each round; a fifth of it one by one.")
    rounds: int = number("Rounds.")
    way: str = choice("How clients reach the workers.", WAYS)


class Thrown(SpanExporter):
    """An exporter that counts spans and drops them."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


@contextmanager
def traced(ratio: float | None) -> Iterator[Thrown]:
    """Instrument with so many sampled, or (None) not, for the length of a ``with`` block."""
    thrown = Thrown()
    if ratio is None:
        yield thrown
        return
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)))
    provider.add_span_processor(BatchSpanProcessor(thrown))
    instrument(provider)
    try:
        yield thrown
    finally:
        uninstrument()
        provider.shutdown()


async def in_batches(producer: AsyncClient, consumer: AsyncClient, total: int) -> None:
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def send() -> None:
        async with slots:
            await producer.enqueue_many("batches", [Message(PAYLOAD, HEADERS) for _ in range(BATCH)])

    async def take() -> None:
        left = total
        while left:
            deliveries = await consumer.receive("batches", 500, wait=5)
            await consumer.ack(deliveries)
            left -= len(deliveries)

    await asyncio.gather(take(), *(send() for _ in range(total // BATCH)))


async def one_by_one(producer: AsyncClient, consumer: AsyncClient, total: int) -> None:
    async def send() -> None:
        for _ in range(total // ONE_BY_ONE):
            await producer.enqueue("singles", PAYLOAD, HEADERS)

    async with consumer.consume("singles", prefetch=500) as deliveries:

        async def take() -> None:
            for _ in range(total // ONE_BY_ONE):
                await (await anext(deliveries)).ack()

        await asyncio.gather(*(send() for _ in range(ONE_BY_ONE)), *(take() for _ in range(ONE_BY_ONE)))


WORKS: dict[str, Work] = {"in batches": in_batches, "one by one": one_by_one}
STEPS = {"in batches": BATCH, "one by one": ONE_BY_ONE}


async def pace(gate: Gate, system: Fila, address: str, name: str, ratio: float | None, total: int) -> tuple[Spent, int]:
    """Send and receive so many messages. Return the time and this process's CPU time, and how many spans were exported."""
    with traced(ratio) as thrown:
        async with system.connect(address) as producer, system.connect(address) as consumer:
            await WORKS[name](producer.client, consumer.client, 2 * STEPS[name])  # warm up
            gate.wait()
            await WORKS[name](producer.client, consumer.client, total)
            spent = gate.spent()
    return spent, thrown.count


def measure(run: Run[Scale]) -> None:
    """Measure all kinds in turn."""
    system = Fila(way=run.scale.way)
    with run.serving(system) as cluster:
        clients.create(system, cluster, *QUEUES)
        for name in WORKS:
            total = max(1, run.scale.messages // (5 if name == "one by one" else 1) // STEPS[name]) * STEPS[name]
            for kind in run.rounds(run.scale.rounds, KINDS, name):
                work = (pace, system, cluster.address, name, KINDS[kind], total)
                ((spent, spans),) = together(work, env=system.environment())
                _add(run, f"{name}, {kind}", total, spent, spans)
            with blocking_client(cluster.address) as client:
                left = [(info.name, info.depth) for info in client.list_queues() if info.depth]
            assert not left, f"messages were left: {left}"
            for kind in KINDS:
                _compare(run, name, kind)


def _add(run: Run[Scale], row: str, total: int, spent: Spent, spans: int) -> None:
    run.figure(RATES, row, COLUMN, "/s", total / spent.seconds)
    run.figure(COSTS, row, COLUMN, "µs", spent.cpu_s * 1e6 / total)
    run.figure(SPANS, row, COLUMN, "", spans)


def _compare(run: Run[Scale], name: str, kind: str) -> None:
    row, plain = f"{name}, {kind}", f"{name}, not instrumented"
    if row == plain:
        return
    shares = ratios(run.values(RATES, row, COLUMN), run.values(RATES, plain, COLUMN))
    run.figure(LOST, row, COLUMN, "%", *(100 * (1 - share) for share in shares))
    pairs = zip(run.values(COSTS, row, COLUMN), run.values(COSTS, plain, COLUMN), strict=True)
    run.figure(MORE, row, COLUMN, "µs", *(cost - other for cost, other in pairs))


BENCHMARK = Benchmark("tracing", measure, Scale(1_000, 1), Scale(30_000, 3), Scale(100_000, 5))
