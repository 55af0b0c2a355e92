"""A queue that never had a message, such as one with a misspelt name, can be deleted.

Source: taskforcesh/bullmq issue 2925
Right: it is gone at once, without force, also while a client waits for its messages
"""

import threading

import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError, QueueNotFoundError
from tests.support.cluster.cluster import Cluster, eventually


def test_it_is_gone_though_someone_waits(client: Client, queue: str, shared_cluster: Cluster) -> None:
    ended: list[FilaError] = []

    def wait() -> None:
        with shared_cluster.client() as other:
            try:
                other.receive(queue, wait=60)
            except FilaError as error:
                ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: client.why(queue) is not None, "the queue is asked about")
    client.delete_queue(queue)
    waiting.join(30)
    assert [type(error) for error in ended] == [QueueNotFoundError]
    assert client.list_queues(queue) == []
    with pytest.raises(QueueNotFoundError):
        client.delete_queue(queue)
