"""A closing that is cut short: what it frees is freed all the same."""

import asyncio
import os
import signal
import threading

import pytest

from fila_cluster import AsyncClient, Client
from fila_cluster.client.protocol import consuming
from fila_proto_zmq.commands import Goodbye, Subscribe
from tests.support.cluster.cluster import eventually
from tests.support.descriptors import all_closed_again
from tests.unit.client.conftest import until
from tests.unit.client.peer import Broker, broker, usual_answer

PATIENCE_S = 60.0


def silent_at_the_end(sent):
    """A broker that does not answer a farewell."""
    return None if isinstance(sent.command, Goodbye) else usual_answer(sent)


@pytest.fixture
def peer(monkeypatch):
    monkeypatch.setattr(consuming, "LEAVING_TIMEOUT_S", PATIENCE_S)
    with broker(silent_at_the_end) as peer, all_closed_again():
        yield peer


def interrupt_at_goodbye(peer: Broker) -> threading.Thread:
    def watch():
        eventually(lambda: peer.seen_of(Goodbye), "a farewell")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_an_interrupt_ends_the_waiting_and_not_the_closing(peer):
    client = Client(peer.endpoint, timeout=PATIENCE_S)
    consumer = client.consume("q")
    eventually(lambda: peer.seen_of(Subscribe), "a subscription")
    interrupting = interrupt_at_goodbye(peer)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    interrupting.join()
    assert client.closed
    assert list(consumer) == []


def test_a_cancellation_ends_the_waiting_and_not_the_closing(peer):
    async def main():
        client = AsyncClient(peer.endpoint, timeout=PATIENCE_S)
        consumer = client.consume("q")
        await until(lambda: peer.seen_of(Subscribe), "a subscription")
        closing = asyncio.create_task(client.close())
        await until(lambda: peer.seen_of(Goodbye), "a farewell")
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client.closed
        assert [delivery async for delivery in consumer] == []

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
