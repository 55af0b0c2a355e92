"""What only the asyncio client has: loops, ticks, tasks and their cancellation, on both event loops."""

import asyncio
import gc
import threading
import warnings

import pytest
import uvloop

from fila_cluster import AsyncClient
from fila_cluster.client.io import reactor
from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import (
    Delivered,
    Enqueue,
    QueueList,
    Receive,
    Settle,
    Subscribe,
    Verb,
)
from tests.support.cluster.cluster import PATIENCE_S
from tests.unit.client.conftest import until
from tests.unit.client.peer import answering, batch, broker

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    def run_on(coroutine):
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(coroutine, PATIENCE_S))

    return run_on


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


def test_a_cancelled_enqueue_or_ack_disturbs_no_other_call(run):
    async def main(peer):
        async with AsyncClient(peer.endpoint) as client:
            task = asyncio.create_task(client.enqueue("q", b"x"))
            await asyncio.sleep(0)
            task.cancel()
            assert await client.enqueue("q", b"y")

    with broker() as peer:
        run(main(peer))


def test_a_burst_larger_than_one_exchange_is_taken_in_whole(run):
    """The descriptor becomes readable for the first frame only."""

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
