"""Work through the lines of a web server's log with a broker in this process, and go on where it was if it is killed.

python examples/embedded_tool.py tests/data/apache_access.log ./log-queue

Each line is a message, so the work may be interrupted at any line, also by `kill -9`. A second run with the same directory
does what is left. It takes no line in twice, if it comes within the dedup window of five minutes.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fila_cluster import Client, Message
from fila_cluster.embedded import Broker
from fila_cluster.errors import QueueExistsError

LINES, TAKEN_IN = "lines", "taken-in"
AT_ONCE = 500
LEASE_S = 2.0
"""After so long the lines that a killed run had in its hands are given out again."""


def take_in(client: Client, log: Path) -> int:
    """Enqueue the lines that are not in yet; return how many. The line's number is the dedup id of its message."""
    taken = int(client.get_config(TAKEN_IN) or 0)

    def rest() -> Iterator[Message]:
        with log.open("rb") as lines:
            for number, line in enumerate(lines):
                if number >= taken:
                    visitor = line.split(b" ", 1)[0].decode(errors="replace")
                    yield Message(line.strip(), fairness_key=visitor or "nobody", dedup_id=str(number))

    count = len(client.enqueue_many(LINES, rest()))
    client.set_config(TAKEN_IN, str(taken + count))
    return count


def status_of(line: bytes) -> str:
    """Return the status of a request in the combined log format."""
    after_request = line.split(b'"', 2)[-1].split()
    return after_request[0].decode() if after_request and after_request[0].isdigit() else "unreadable"


def work(client: Client) -> Counter[str]:
    """Count the status codes of the lines that are left."""
    statuses: Counter[str] = Counter()
    while client.queue_stats(LINES).depth:
        deliveries = client.receive(LINES, AT_ONCE, wait=LEASE_S)
        statuses.update(status_of(delivery.payload) for delivery in deliveries)
        client.ack(deliveries)
    return statuses


def main(log: str, directory: str) -> None:
    """Take the log in, count, and print the counts."""
    with Broker(directory) as broker, broker.client() as client:
        try:
            client.create_queue(LINES, visibility_timeout=LEASE_S)
        except QueueExistsError:
            left = client.queue_stats(LINES).depth
            print(f"going on with {left:,} lines")
        print(f"{take_in(client, Path(log)):,} lines taken in")
        statuses = work(client)
        print(" · ".join(f"{status}: {count:,}" for status, count in statuses.most_common()) or "nothing to do")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} LOG DIRECTORY")
    main(sys.argv[1], sys.argv[2])
