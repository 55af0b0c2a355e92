"""Measure what tracing costs: throughput without instrumentation, with nothing sampled, and with 1 % sampled, in turns.

    python benchmarks/tracing_cost.py [--messages 100000] [--rounds 5]

One producer and one consumer work at once, in two ways: in batches (``enqueue_many`` of 100, ``receive``, ``ack`` of all), and one by one
(``enqueue``, ``consume``, ``delivery.ack()``, 64 under way), where each call may become a span. Sampled spans go through the SDK's batch
processor to an exporter that drops them. Each round runs the three ways after each other; costs are medians of the rounds. The CPU time is
that of this process, producer and consumer together: noise of the machine does not change it.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cluster import OneCluster
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fila_cluster import AsyncClient, Message
from fila_cluster.tracing import instrument, uninstrument

BATCH = 100
IN_FLIGHT = 8
ONE_BY_ONE = 64
HEADERS = {"content-type": "application/json", "tenant": "acme"}
PAYLOAD = b"x" * 1024
WAYS = {"not instrumented": None, "0 % sampled": 0.0, "1 % sampled": 0.01}
Run = Callable[[AsyncClient, AsyncClient, int], Awaitable[None]]


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


class Pace(NamedTuple):
    """``rate``: messages a second, from the first enqueue to the last ack. ``cpu_us``: of this process, for each message."""

    rate: float
    cpu_us: float


async def pace(endpoint: str, run: Run, total: int) -> Pace:
    async with AsyncClient(endpoint, timeout=30) as producer, AsyncClient(endpoint, timeout=30) as consumer:
        start, spent = time.perf_counter(), time.process_time()
        await run(producer, consumer, total)
        return Pace(total / (time.perf_counter() - start), (time.process_time() - spent) * 1e6 / total)


async def prepare(endpoint: str) -> None:
    async with AsyncClient(endpoint) as client:
        await client.create_queue("batches")
        await client.create_queue("singles")


def measure(endpoint: str, run: Run, total: int, rounds: int) -> tuple[dict[str, list[Pace]], dict[str, int]]:
    """Return rates and exported spans by way. The first round is for warming up."""
    paces: dict[str, list[Pace]] = {way: [] for way in WAYS}
    spans = dict.fromkeys(WAYS, 0)
    for _ in track(range(rounds + 1), description=run.__name__.replace("_", " ")):
        for way, ratio in WAYS.items():
            with traced(ratio) as thrown:
                paces[way].append(asyncio.run(pace(endpoint, run, total)))
            spans[way] += thrown.count
    return {way: each[1:] for way, each in paces.items()}, spans


def report(table: Table, name: str, paces: dict[str, list[Pace]], spans: dict[str, int]) -> None:
    plain = paces["not instrumented"]
    for way, each in paces.items():
        rates = [one.rate for one in each]
        shown = [f"{value:,.0f}" for value in (statistics.median(rates), min(rates), max(rates))]
        cost = statistics.median(1 - one.rate / without.rate for one, without in zip(each, plain, strict=True))
        more_us = statistics.median(one.cpu_us - without.cpu_us for one, without in zip(each, plain, strict=True))
        spent = f"{statistics.median(one.cpu_us for one in each):.2f}"
        table.add_row(name, way, *shown, f"{cost:.1%}", spent, f"{more_us:+.2f}", f"{spans[way]:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="in batches, each round; a fifth of it one by one")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table("", "", "messages/s, median", "least", "most", "cost", "CPU µs a message", "more", "spans")
    with tempfile.TemporaryDirectory() as directory, OneCluster(Path(directory) / "data") as cluster:
        asyncio.run(prepare(cluster.endpoint))
        for run, total in ((in_batches, options.messages), (one_by_one, options.messages // 5)):
            step = BATCH if run is in_batches else ONE_BY_ONE
            report(
                table, run.__name__.replace("_", " "), *measure(cluster.endpoint, run, total // step * step, options.rounds)
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
