"""Keep the last request of each visitor of each day, in a queue for each day that its first message creates.

    python examples/last_visits.py PATH/TO/apache_access.log [endpoint]

The program enqueues every line of an access log (Apache's combined format). The day is in the queue's name, and a template
makes the queue with its first message. The visitor's address is the dedup id: a later request replaces an earlier one, so
each visitor has one message a day. At the end each message is compared with the log.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

from fila_cluster import Client

LINE = re.compile(r"(?P<address>\S+) \S+ \S+ \[(?P<day>\d+)/(?P<month>\w+)/")
PREFIX = "visits-"


def send(client: Client, log: Path) -> dict[str, dict[str, bytes]]:
    """Enqueue all lines. Return what must come of it: the last line of each visitor, by queue and address."""
    expected: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    with log.open("rb") as lines, client.producer() as producer:
        for line in lines:
            if match := LINE.match(line.decode(errors="replace")):
                queue, address = f"{PREFIX}{match['month']}-{match['day']}", match["address"]
                producer.send(line, queue=queue, fairness_key=address, dedup_id=address, dedup_mode="last")
                expected[queue][address] = line
    return expected


def take(client: Client, queue: str) -> dict[str, bytes]:
    """Receive and ack all messages of a queue. Return their payloads by fairness key."""
    found: dict[str, bytes] = {}
    while deliveries := client.receive(queue, 500):
        found |= {delivery.fairness_key: delivery.payload for delivery in deliveries}
        client.ack(deliveries)
    return found


def main(log: str, endpoint: str | None = None) -> None:
    """Send the log, show how many messages each day has, and compare them."""
    with Client(endpoint) as client:
        client.put_template(f"{PREFIX}*", max_attempts=3, idle_expiry=60)
        expected = send(client, Path(log))
        for queue in sorted(expected):
            found = take(client, queue)
            same = sum(found.get(address) == line for address, line in expected[queue].items())
            print(f"{queue}: {len(found):,} visitors, {same:,} with their last request")
            client.delete_queue(queue)
        client.delete_template(f"{PREFIX}*")


if __name__ == "__main__":
    main(*sys.argv[1:3])
