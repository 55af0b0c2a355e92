"""What is told right after a purge is not the state from before it.

Source: nats-io/natscli issue 138
Right: the next look shows what the purge has left, and the purge says how many it took
"""

from fila_cluster import Client, Message


def test_a_look_after_a_purge_shows_what_is_left(client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x", delay=number % 2 * 60) for number in range(100)])
    (held,) = client.receive(queue)
    assert client.purge_queue(queue) == 99
    stats = client.queue_stats(queue)
    assert (stats.pending, stats.delayed, stats.in_flight, stats.oldest_pending_age) == (0, 0, 1, 0)
    assert [(info.name, info.depth) for info in client.list_queues(queue) if not info.is_dead_letter] == [(queue, 1)]
    assert client.purge_queue(queue) == 0
    held.ack()
