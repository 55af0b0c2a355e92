"""Report each minute of a real web site's traffic, on a schedule of the broker.

    make up                                    # in one terminal: the broker
    .venv/bin/python examples/schedules.py PATH/TO/apache_access.log

The program puts a schedule that is due every second, and replays an access log (Apache's combined format), a minute of it for
each due time. A worker that receives the scheduled message prints what happened in that minute. Stop the program or the
broker, and start it again: the broker keeps the schedule, and no due time comes twice.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path

from rich.console import Console

from fila_cluster import Client
from fila_cluster.errors import FilaError, QueueExistsError

LINE = re.compile(
    r'(?P<address>\S+) \S+ \S+ \[(?P<minute>[^:]+:\d+:\d+):[^\]]*\] "(?:\S+ )?(?P<path>\S+)[^"]*" (?P<status>\d{3})'
)
QUEUE, SCHEDULE = "reports", "report-a-minute"


def minutes(log: Path) -> dict[str, Counter[str]]:
    """Return, for each minute of the log, how often each status was answered."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in log.read_text(errors="replace").splitlines():
        match = LINE.match(line)
        if match:
            found[match["minute"]][match["status"]] += 1
    return found


def main() -> int:
    """Report the busiest minutes, one for each due time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path, help="an access log in Apache's combined format")
    parser.add_argument("--reports", type=int, default=3, help="how many minutes to report (3)")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    traffic = sorted(minutes(arguments.log).items(), key=lambda item: -sum(item[1].values()))[: arguments.reports]
    seen: set[str] = set()
    try:
        with Client() as client:
            try:
                client.create_queue(QUEUE)
            except QueueExistsError:
                client.purge_queue(QUEUE)
            client.put_schedule(SCHEDULE, QUEUE, b"report", every=1.0, catch_up="all")
            with client.consume(QUEUE, prefetch=1) as due:
                for (minute, statuses), delivery in zip(traffic, due, strict=False):
                    at = datetime.fromisoformat(delivery.headers["fila-due-at"])
                    seen.add(delivery.headers["fila-due-at"])
                    shown = ", ".join(f"{count} × {status}" for status, count in statuses.most_common(3))
                    console.print(f"due {at:%H:%M:%S}  {minute}  {sum(statuses.values()):3} requests: {shown}")
                    delivery.ack()
            schedule = client.get_schedule(SCHEDULE)
            client.delete_schedule(SCHEDULE)
            client.delete_queue(QUEUE, force=True)
    except FilaError as error:
        print(f"{error}\nIs the broker running? Start it with: make up", file=sys.stderr)
        return 1
    assert schedule is not None
    console.print(f"{len(traffic)} reports for {len(seen)} due times; {schedule.skipped} skipped, {schedule.failed} failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
