"""Copy a queue to another one, without waiting for each message, and without losing one.

A message is acked once its copy is confirmed. If the program dies in between, the message is delivered again; its ``dedup_id`` has
the copy stored once.

fila-cluster up                  # in one terminal
python examples/pipelines.py     # in another
"""

import time

from fila_cluster import Client

COUNT = 20_000


def fill(client: Client) -> None:
    """Put messages of ten customers into the first queue."""
    with client.producer("copy-from") as producer:
        for number in range(COUNT):
            producer.send(b"order %d" % number, fairness_key=f"customer-{number % 10}")


def copy(client: Client) -> int:
    """Copy all messages, and return how many there were."""
    copied = 0
    with client.producer("copy-to") as producer, client.consume_batches("copy-from") as batches:
        for batch in batches:
            copies = [
                producer.send(each.payload, each.headers, fairness_key=each.fairness_key, dedup_id=each.id) for each in batch
            ]
            producer.flush()
            failed = {each: ("retry", 1.0) for each, future in zip(batch, copies, strict=True) if future.exception()}
            batch.settle(failed)
            batch.ack()  # the others
            copied += len(batch) - len(failed)
            if copied >= COUNT:
                return copied
    return copied


def main() -> None:
    """Run against the broker that ``FILA_ENDPOINT`` names, or the one on this machine."""
    with Client() as client:
        for queue in ("copy-from", "copy-to"):
            client.create_queue(queue)
        begun = time.monotonic()
        fill(client)
        filled = time.monotonic()
        copied = copy(client)
        ended = time.monotonic()
        print(f"{COUNT:,} messages sent in {filled - begun:.1f} s, {copied:,} copied in {ended - filled:.1f} s")
        print(f"{client.queue_stats('copy-from').depth} left, {client.purge_queue('copy-to'):,} in the copy")
        for queue in ("copy-from", "copy-to"):
            client.delete_queue(queue)


if __name__ == "__main__":
    main()
