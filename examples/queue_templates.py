"""Give each section of a web site a queue of its own, without creating any: a template has the options of all of them.

The first enqueue to ``visits-blog`` makes that queue and its dead letter queue, so the sections need not be listed before. A queue
that is not used for an hour is deleted by the broker; this program deletes them at its end.

fila-cluster up                                  # in one terminal
python examples/queue_templates.py access.log    # in another
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

from fila_cluster import Client, Message

PREFIX = "visits-"
REQUEST = re.compile(r'"(?:GET|HEAD|POST) /([a-z0-9-]*)')


def by_section(log: Path) -> dict[str, list[Message]]:
    """Return the requests of a log by the first part of their path; each client is a tenant."""
    sections = defaultdict(list)
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if found := REQUEST.search(line):
                sections[found[1] or "home"].append(Message(line.encode(), fairness_key=line.split()[0]))
    return sections


def main() -> None:
    """Run against the broker that ``FILA_ENDPOINT`` names, or the one on this machine."""
    sections = by_section(Path(sys.argv[1]))
    with Client() as client:
        client.put_template(f"{PREFIX}*", max_attempts=5, visibility_timeout=60, idle_expiry=3600)
        for section, requests in sections.items():
            client.enqueue_many(f"{PREFIX}{section}", requests)

        queues = [queue for queue in client.list_queues(PREFIX) if not queue.is_dead_letter]
        print(f"{sum(queue.pending for queue in queues):,} requests made {len(queues)} queues")
        for queue in sorted(queues, key=lambda each: -each.pending)[:5]:
            assert queue.pending == len(sections[queue.name.removeprefix(PREFIX)])
            print(f"  {queue.name:<24} {queue.pending:>6,} pending")

        client.delete_template(f"{PREFIX}*")
        for queue in queues:
            client.delete_queue(queue.name, force=True)


if __name__ == "__main__":
    main()
