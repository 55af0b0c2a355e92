"""The asyncio client over a real socket, on both event loops."""

import asyncio
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable

import pytest
import uvloop

from fila_cluster import AsyncClient, AsyncDelivery, Delivery, Message
from fila_cluster.client.io import reactor
from fila_cluster.errors import (
    AlreadySettledError,
    BatchError,
    FilaError,
    InvalidArgumentError,
    QueueNotFoundError,
    RequestTimeoutError,
    ShardUnavailableError,
)
from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import (
    Delivered,
    Enqueue,
    GetQueueStats,
    Goodbye,
    QueueList,
    Receive,
    Settle,
    Subscribe,
    Unsubscribe,
    Verb,
)
from tests.support.cluster import PATIENCE_S, eventually
from tests.unit.client.peer import batch, broker
from tests.unit.client.test_blocking import answering, free_port

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


@pytest.fixture
def nothing_is_left_behind():
    uvloop.run(asyncio.sleep(0))  # its first run opens what it never closes
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "descriptors are closed")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    def run_on(coroutine):
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(coroutine, PATIENCE_S))

    return run_on


async def until(condition: Callable[[], object], what: str):
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"never happened: {what}"
        await asyncio.sleep(0.01)


def test_calls(run):
    async def main(endpoint):
        async with AsyncClient(endpoint) as client:
            assert await client.list_queues("a") == []
            with pytest.raises(QueueNotFoundError):
                await client.queue_stats("q")
            with pytest.raises(InvalidArgumentError):
                await client.enqueue("q", "text")  # type: ignore[arg-type]
        assert client.closed
        with pytest.raises(FilaError, match="closed"):
            await client.list_queues()

    with broker(answering(ListQueues=QueueList([]), GetQueueStats=QueueNotFoundError("no"))) as peer:
        run(main(peer.endpoint))


def test_it_may_be_made_outside_of_a_loop(run):
    with broker(answering(ListQueues=QueueList([]))) as peer:
        client = AsyncClient(peer.endpoint)

        async def main():
            await client.list_queues()
            await client.close()

        run(main())


def test_it_belongs_to_one_loop():
    with broker(answering(ListQueues=QueueList([]))) as peer:
        client = AsyncClient(peer.endpoint)
        with asyncio.Runner() as first, asyncio.Runner() as second:
            first.run(client.list_queues())
            with pytest.raises(RuntimeError, match="another event loop"):
                second.run(client.list_queues())
            first.run(client.close())


def test_where_nobody_listens(run):
    async def main():
        async with AsyncClient(f"tcp://127.0.0.1:{free_port()}", timeout=0.2) as client:
            with pytest.raises(RequestTimeoutError, match="no broker answers"):
                await client.list_queues()
            with pytest.raises(RequestTimeoutError, match="no broker answers"):
                await anext(client.consume("q"))

    run(main())


def test_what_is_asked_in_one_tick_travels_in_one_frame(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            await client.enqueue("q", b"first")
            ids = await asyncio.gather(*(client.enqueue("q", b"x") for _ in range(100)))
            assert len(set(ids)) == 100
            deliveries = await client.receive("q", 5)
            await asyncio.gather(*(delivery.ack() for delivery in deliveries))
        assert [len(sent.command.envelopes) for sent in peer.seen_of(Enqueue)] == [1, 100]
        assert [sent.command.fences for sent in peer.seen_of(Settle)] == [[(7, [])]]

    with broker(answering(Receive=Delivered(0, [batch(7, 5)]))) as peer:
        run(main(peer))


def test_enqueue_many(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            assert len(await client.enqueue_many("q", [Message(b"x")] * 3000)) == 3000
            with pytest.raises(BatchError):
                await client.enqueue_many("q", [Message(3)])  # type: ignore[arg-type]

    with broker() as peer:
        run(main(peer))


def test_settling(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            deliveries = await client.receive("q", 5)
            assert all(isinstance(delivery, AsyncDelivery) and isinstance(delivery, Delivery) for delivery in deliveries)
            first, second, third, *rest = deliveries
            await first.ack()
            await second.nack("why", metadata=b"m")
            await third.retry(1)
            await client.ack(rest)
            with pytest.raises(AlreadySettledError):
                await first.fail()
            with pytest.raises(BatchError):
                await client.nack(deliveries)
        verbs = [sent.command.verb for sent in peer.seen_of(Settle)]
        assert verbs == [Verb.ACK, Verb.NACK, Verb.RETRY, Verb.ACK]

    with broker(answering(Receive=Delivered(0, [batch(7, 5)]))) as peer:
        run(main(peer))


def test_consuming(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            async with client.consume("q", prefetch=5) as consumer:
                await until(lambda: peer.seen_of(Subscribe), "a subscription")
                peer.push("q", 1, batch(7, 3))
                held = await anext(consumer)
            assert peer.seen_of(Unsubscribe)
            assert peer.seen_of(Settle)[0].command == Settle(Verb.RELEASE, [(7, [1, 2])])
            with pytest.raises(StopAsyncIteration):
                await anext(consumer)
            await held.ack()
        assert [sent.key for sent in peer.seen_of(Goodbye)] == ["q"]

    with broker() as peer:
        run(main(peer))


def test_a_loop_that_ends_leaves_too(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            consumer = client.consume("q")
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, batch(7, 3))
            async for delivery in consumer:
                await delivery.ack()
                break
            del consumer
            await until(lambda: len(peer.seen_of(Settle)) == 2, "the release")
        assert peer.seen_of(Settle)[1].command == Settle(Verb.RELEASE, [(7, [1, 2])])

    with broker() as peer:
        run(main(peer))


def test_a_queue_that_does_not_exist(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            with pytest.raises(QueueNotFoundError):
                async for _ in client.consume("q"):
                    pass

    with broker(answering(Subscribe=QueueNotFoundError("no queue 'q'"))) as peer:
        run(main(peer))


def test_leases_are_kept_alive_while_the_caller_is_busy(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume("q") as consumer:
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, batch(7, 1, duration_ms=150))
            delivery = await anext(consumer)
            await until(lambda: len([s for s in peer.seen_of(Subscribe) if s.command.renew == [7]]) >= 3, "renewals")
            await delivery.ack()

    with broker() as peer:
        run(main(peer))


def test_several_tasks_take_from_one_consumer(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume("q") as consumer:

            async def take():
                delivery = await anext(consumer)
                await delivery.ack()
                return delivery.id

            tasks = [asyncio.create_task(take()) for _ in range(5)]
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            for lease in range(5):
                peer.push("q", 1, batch(lease + 1))
            assert len(set(await asyncio.gather(*tasks))) == 5

    with broker() as peer:
        run(main(peer))


def test_what_a_cancelled_receive_would_have_got_goes_back(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            task = asyncio.create_task(client.receive("q", 5, wait=60))
            await until(lambda: peer.seen_of(Receive), "a receive")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (sent,) = peer.seen_of(Receive)
            peer.send(*encode_reply(30, sent.header.request, Delivered(0, [batch(7, 2)]), "q"))
            await until(lambda: peer.seen_of(Settle), "the release")
        assert peer.seen_of(Settle)[0].command == Settle(Verb.RELEASE, [(7, [])])

    with broker(answering(Receive=None)) as peer:
        run(main(peer))


def test_waiting_for_a_delivery_may_be_cancelled_again_and_again(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume("q") as consumer:
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(consumer), 0.01)
            assert consumer._subscription.waiting == []
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            peer.push("q", 1, batch(7))
            await (await anext(consumer)).ack()

    with broker() as peer:
        run(main(peer))


def test_a_cancelled_enqueue_or_ack_disturbs_nobody(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            task = asyncio.create_task(client.enqueue("q", b"x"))
            await asyncio.sleep(0)
            task.cancel()
            assert await client.enqueue("q", b"y")

    with broker() as peer:
        run(main(peer))


def test_it_rides_through_a_restart_of_the_broker(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume("q") as consumer:
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            lost = asyncio.create_task(client.enqueue("q", b"x"))
            repeated = asyncio.create_task(client.queue_stats("q"))
            await until(lambda: peer.seen_of(Enqueue) and peer.seen_of(GetQueueStats), "calls in flight")
            peer.close()
            with pytest.raises(ShardUnavailableError, match="lost"):
                await lost
            port = int(peer.endpoint.rsplit(":", 1)[1])
            answers = answering(GetQueueStats=QueueNotFoundError("repeated"))
            with broker(answers, port) as second:
                with pytest.raises(QueueNotFoundError, match="repeated"):
                    await repeated
                await until(lambda: second.seen_of(Subscribe), "the subscription, again")
                second.push("q", 1, batch(7))
                await (await anext(consumer)).ack()
                await consumer.close()

    with broker(answering(Enqueue=None, GetQueueStats=None)) as peer:
        run(main(peer))


def test_closing_ends_what_others_wait_for(run):
    async def main(peer):
        client = AsyncClient(peer.endpoint)
        receiving = asyncio.create_task(client.receive("q", wait=60))

        async def consume():
            return [delivery async for delivery in client.consume("q")]

        consuming = asyncio.create_task(consume())
        await until(lambda: peer.seen_of(Receive) and peer.seen_of(Subscribe), "two that wait")
        await client.close()
        with pytest.raises(FilaError, match="closed"):
            await receiving
        assert await consuming == []

    with broker(answering(Receive=None)) as peer:
        run(main(peer))


def test_a_burst_larger_than_one_exchange_is_taken_in_whole(run):
    """The descriptor tells of the first frame only."""

    async def main(peer):
        async with AsyncClient(peer.endpoint) as client, client.consume("q", prefetch=1000) as consumer:
            await until(lambda: peer.seen_of(Subscribe), "a subscription")
            for lease in range(700):
                peer.push("q", 1, batch(lease + 1))
            threading.Event().wait(0.2)  # let all of them arrive while the loop is busy
            deliveries = [await anext(consumer) for _ in range(700)]
            await client.ack(deliveries)

    with broker() as peer:
        run(main(peer))


def test_a_client_that_is_never_closed_is_warned_of(run):
    async def main(peer):
        client = AsyncClient(peer.endpoint)
        await client.list_queues()

    with broker(answering(ListQueues=QueueList([]))) as peer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(main(peer))
        gc.collect()
    assert any("AsyncClient" in str(warning.message) and "never closed" in str(warning.message) for warning in caught)


def test_our_own_programs_run_on_uvloop():
    async def main():
        return type(asyncio.get_running_loop()).__module__

    assert reactor.run(main()).startswith("uvloop")
