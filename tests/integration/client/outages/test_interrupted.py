"""Calls that are cancelled or interrupted at any moment, and an ack that is too late: nothing is lost, and the client stays usable."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from fila_cluster import AsyncClient, Client, Message
from fila_cluster.client.io import reactor
from fila_cluster.errors import AlreadySettledError, FilaError, LeaseExpiredError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, settling_may_fail

LONG_S = 600.0
"""A visibility timeout that no test waits for."""


@pytest.fixture
def client(shared_cluster: Cluster) -> Iterator[Client]:
    """One client, not both: cancelling is asyncio's, and interrupting is the blocking client's."""
    with shared_cluster.client() as client:
        yield client


@pytest.fixture
def queue(client: Client, queue: str) -> str:
    """A queue whose leases do not run out."""
    client.update_queue(queue, visibility_timeout=LONG_S)
    return queue


def test_a_cancelled_receive_takes_nothing_with_it(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            await client.update_queue(queue, max_attempts=1)
            got = set()
            for number in range(30):
                receiving = asyncio.ensure_future(client.receive(queue, wait=PATIENCE_S))
                enqueued = asyncio.ensure_future(client.enqueue(queue, b"%d" % number))
                for _ in range(number % 10):
                    await asyncio.sleep(0.0005)
                receiving.cancel()
                with suppress(asyncio.CancelledError):
                    for delivery in await receiving:  # it was quicker than its cancellation
                        got.add(delivery.payload)
                        await delivery.ack()
                await enqueued
            while len(got) < 30:
                for delivery in await client.receive(queue, 30, wait=PATIENCE_S):
                    got.add(delivery.payload)
                    await delivery.ack()

    reactor.run(main())


def test_a_cancelled_anext_leaves_the_delivery_for_the_next_one(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            async with client.consume(queue, prefetch=1) as consumer:
                got = []
                for number in range(30):
                    await client.enqueue(queue, b"%d" % number)
                    taking = asyncio.ensure_future(anext(consumer))
                    for _ in range(number % 5):
                        await asyncio.sleep(0.0005)
                    taking.cancel()
                    try:
                        delivery = await taking
                    except asyncio.CancelledError:
                        delivery = await anext(consumer)
                    got.append(delivery.payload)
                    await delivery.ack()
                assert got == [b"%d" % number for number in range(30)]

    reactor.run(main())


def test_a_cancelled_ack_can_be_repeated(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            for number in range(20):
                await client.enqueue(queue, b"x")
                (delivery,) = await client.receive(queue, wait=PATIENCE_S)
                acking = asyncio.ensure_future(delivery.ack())
                for _ in range(number % 4):
                    await asyncio.sleep(0.0003)
                acking.cancel()
                try:
                    await acking
                except asyncio.CancelledError:
                    with suppress(AlreadySettledError):  # its answer was there already
                        await delivery.ack()
            assert (await client.queue_stats(queue)).depth == 0

    reactor.run(main())


def test_a_cancelled_enqueue_leaves_the_client_in_order(shared_cluster: Cluster, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_cluster.endpoint, timeout=PATIENCE_S) as client:
            assert await client.list_queues(queue)  # the connection stands
            for number in range(50):
                enqueuing = asyncio.ensure_future(client.enqueue(queue, b"x"))
                for _ in range(number % 5):
                    await asyncio.sleep(0.0003)
                enqueuing.cancel()
                with suppress(asyncio.CancelledError):
                    await enqueuing
            await client.enqueue(queue, b"last")
            assert 1 <= (await client.queue_stats(queue)).depth <= 51
            assert client._session.kept_bytes < 10_000

    reactor.run(main())


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def interrupted(call: Callable[[], object], after_s: float) -> None:
    """Make a call, and be interrupted in it; again a little later if the first interrupt hit a finalizer, which swallows it."""
    with suppress(KeyboardInterrupt, FilaError):
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s, 0.2)
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@settling_may_fail
@pytest.mark.filterwarnings("ignore:.*was never settled:ResourceWarning")
@pytest.mark.parametrize("what", ["receive", "consume", "enqueue", "enqueue_many", "ack"])
def test_an_interrupt_leaves_the_client_usable(shared_cluster: Cluster, queue: str, what: str) -> None:
    """At any moment of a call, many times."""
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with shared_cluster.client() as client:
            assert client.list_queues(queue)  # the connection stands
            calls: dict[str, Callable[[], object]] = {
                "receive": lambda: client.receive(queue, wait=0.05),
                "consume": lambda: [delivery.ack() for delivery in client.consume(queue)],
                "enqueue": lambda: [client.enqueue(queue, b"x") for _ in range(100)],
                "enqueue_many": lambda: client.enqueue_many(queue, [Message(b"x")] * 1000),
                "ack": lambda: client.ack(client.receive(queue, 100)),
            }
            for number in range(40):
                if what in {"consume", "ack"}:
                    client.enqueue_many(queue, [Message(b"x")] * 20)
                interrupted(calls[what], 0.0005 + number * 0.0002)
                assert client.list_queues(queue)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_late_is_late(client: Client, queue: str) -> None:
    client.update_queue(queue, visibility_timeout=0.2)
    client.enqueue(queue, b"x")
    (delivery,) = client.receive(queue)
    eventually(lambda: client.queue_stats(queue).expired == 1, "its lease has ended")
    with pytest.raises(LeaseExpiredError):
        delivery.ack()
