"""Closing a client that other threads, or tasks of its event loop, are busy with."""

import threading
from collections.abc import Callable

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually

COUNT = 200
TURNS = 100
AWHILE_S = 0.001


class Busy:
    """Threads that take turns until the client is closed."""

    def __init__(self, *turns: Callable[[], None]):
        self.turns = 0
        self.ended: list[str] = []
        self.threads = [threading.Thread(target=self.work, args=(turn,)) for turn in turns]
        for thread in self.threads:
            thread.start()

    def work(self, turn: Callable[[], None]):
        try:
            while True:
                turn()
                self.turns += 1
        except FilaError as error:
            self.ended.append(error.message)

    def join(self) -> list[str]:
        """How they ended."""
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        return self.ended


def assert_all_came_back(client: Client, queue: str):
    """Nothing was leased to a client that had taken its leave: then it would count as lost, which counts an attempt."""
    eventually(lambda: client.queue_stats(queue).in_flight == 0, "given back", 60)
    messages = client.browse(queue, limit=COUNT)
    assert [message.attempts for message in messages] == [0] * COUNT


def test_closing_a_busy_client_leaves_nothing_leased(shared_cluster: Cluster, client: Client, queue: str, open_client):
    client.enqueue_many(queue, [Message(b"x")] * COUNT)
    busy = open_client(shared_cluster.endpoint, timeout=PATIENCE_S)

    def receive():
        for delivery in busy.receive(queue, 2, wait=5):
            delivery.defer(AWHILE_S)

    def receive_any():
        for delivery in busy.receive_any({queue: 2, f"{queue}.dlq": 2}, wait=5):
            delivery.defer(AWHILE_S)

    def consume():
        with busy.consume(queue, prefetch=5) as consumer:
            for delivery in consumer:
                delivery.defer(AWHILE_S)
                break

    threads = Busy(*(receive, receive_any, consume) * 2)
    eventually(lambda: threads.turns >= TURNS, "turns")
    busy.close()
    assert threads.join() == ["this client is closed: open another one"] * 6
    assert_all_came_back(client, queue)
