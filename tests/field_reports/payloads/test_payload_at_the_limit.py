"""A message is judged by one limit, before it is sent, whatever its headers are; and the connection stays.

Source: nats-io/nats.py pull request 888, nats-io/nats-streaming-server issue 831
Right: a payload of exactly the limit is delivered, one byte more is PayloadTooLargeError; headers do not count for it
"""

import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError, PayloadTooLargeError

LIMIT = 16 * 1024 * 1024


def test_one_byte_more_is_refused(client: Client, queue: str) -> None:
    headers = {"kind": "x" * 1000}
    client.enqueue(queue, bytes(LIMIT), headers)
    with pytest.raises(PayloadTooLargeError, match=str(LIMIT + 1)):
        client.enqueue(queue, bytes(LIMIT + 1), headers)
    (delivery,) = client.receive(queue)
    assert len(delivery.payload) == LIMIT
    assert delivery.headers == headers
    delivery.ack()


def test_headers_have_a_limit_of_their_own(client: Client, queue: str) -> None:
    for headers in ({"huge": "x" * (32 << 20)}, {f"key-{number}": "x" * 1000 for number in range(40_000)}):
        with pytest.raises(FilaError) as refused:
            client.enqueue(queue, b"small", headers)
        assert not refused.value.retryable
    client.enqueue(queue, b"next")
    assert client.queue_stats(queue).depth == 1
