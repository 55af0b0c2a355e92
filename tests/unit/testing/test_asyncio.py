"""Asyncio clients of the kit's broker."""

import asyncio
from collections.abc import Iterator

import pytest

from fila_cluster import AsyncClient, Message
from fila_cluster.testing import Fila, broker
from tests.support.cluster.cluster import PATIENCE_S


@pytest.fixture
def fila() -> Iterator[Fila]:
    with broker() as opened:
        opened.create_queue("q")
        yield opened


def test_calls_and_deliveries(fila: Fila) -> None:
    async def main() -> list[bytes]:
        async with AsyncClient(fila.endpoint) as client:
            await asyncio.gather(*(client.enqueue("q", b"%d" % number) for number in range(100)))
            taken = []
            async with client.consume("q", prefetch=7) as consumer:
                async for delivery in consumer:
                    taken.append(delivery.payload)
                    await delivery.ack()
                    if len(taken) == 100:
                        return taken
        raise AssertionError

    assert asyncio.run(main()) == [b"%d" % number for number in range(100)]
    fila.assert_acked("q", 100)


def test_a_receive_that_waits_moves_the_clock(fila: Fila) -> None:
    async def main() -> int:
        async with AsyncClient(fila.endpoint) as client:
            await client.enqueue("q", b"x", delay=200)
            (delivery,) = await client.receive("q", wait=300)
            await delivery.ack()
            assert await client.receive("q", wait=300) == []
            return delivery.attempts

    before = fila.clock.now()
    assert asyncio.run(main()) == 0
    assert (fila.clock.now() - before).total_seconds() == pytest.approx(500, abs=1)


def test_the_clock_moves_a_consumer(fila: Fila) -> None:
    async def main() -> float:
        async with AsyncClient(fila.endpoint) as client, client.consume("q") as consumer:
            await client.enqueue("q", b"x")
            delivery = await anext(consumer)
            await delivery.retry(after=500)
            fila.clock.advance(499)
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            assert not waiting.done()
            fila.clock.advance(1)
            again = await asyncio.wait_for(waiting, PATIENCE_S)
            fila.clock.advance(300)  # its lease is renewed meanwhile
            await again.ack()
            return again.attempts

    assert asyncio.run(main()) == 1


def test_a_producer(fila: Fila) -> None:
    async def main() -> None:
        async with AsyncClient(fila.endpoint) as client, client.producer("q") as producer:
            lone = await producer.send(b"lone")
            await asyncio.wait_for(lone, PATIENCE_S)
            for number in range(1000):
                await producer.send(b"%d" % number)

    asyncio.run(main())
    fila.assert_pending("q", 1001)


def test_batches(fila: Fila) -> None:
    fila.enqueue_many("q", [Message(b"x")] * 700)

    async def main() -> int:
        count = 0
        async with AsyncClient(fila.endpoint) as client, client.consume_batches("q", max_messages=100) as batches:
            async for batch in batches:
                count += len(batch)
                await batch.ack()
                if count == 700:
                    return count
        raise AssertionError

    assert asyncio.run(main()) == 700


def test_a_client_that_is_cancelled_gives_back(fila: Fila) -> None:
    async def main() -> None:
        async with AsyncClient(fila.endpoint) as client, client.consume("q") as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
    fila.enqueue("q", b"x")
    fila.receive("q")[0].ack()
