"""Handle the requests of a real access log: typed payloads, dead letters, retries with pauses, dependencies.

    fila-cluster up                                           # in one terminal: the broker
    python examples/handlers.py PATH/TO/apache_access.log     # in another

The program enqueues every line of an access log (Apache's combined format) as JSON, with its client address as the fairness
key. A coroutine counts the requests; those for paths that do not exist go on to a second queue, where a function reports
them, and fails at the first attempt of each. Where the log has "-" for the size of an answer, the payload does not fit the
handler's type: it becomes a dead letter.

With `app` in a module of your own, `fila-cluster work module:app --processes 4` does the same in processes.
"""

import argparse
import asyncio
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from fila_cluster import AsyncClient, Client, Delivery, Message
from fila_cluster.app import App, Depends, Stop, backoff
from fila_cluster.errors import FilaError

LINE = re.compile(
    r'(?P<address>\S+) \S+ \S+ \[[^\]]*\] "(?P<method>[A-Z]+) (?P<path>\S+)[^"]*" (?P<status>\d{3}) (?P<size>\S+)'
)
REQUESTS, MISSING = "example-requests", "example-missing-pages"

app = App()


class Request(msgspec.Struct):
    """The payload of a message. It is checked against this type before the handler is called."""

    method: str
    path: str
    status: int
    size: int


totals: Counter[str] = Counter()
missing: Counter[str] = Counter()


async def broker() -> AsyncIterator[AsyncClient]:
    """Connect once, for all messages of the process."""
    async with AsyncClient() as client:
        yield client


Broker = Annotated[AsyncClient, Depends(broker, scope="app")]


@app.handler(REQUESTS, concurrency=64, prefetch=256)
async def count(request: Request, delivery: Delivery, broker: Broker) -> None:
    """Count a request, and pass on what was not found. A message that comes again is passed on once."""
    totals[f"{request.status // 100}xx"] += 1
    if request.status == 404:
        await broker.enqueue(MISSING, request.path.encode(), fairness_key=delivery.fairness_key, dedup_id=delivery.id)


@app.handler(MISSING, concurrency=16, retry=backoff(first=0.01, factor=2, most=1, attempts=5), timeout=10)
def report(path: str, delivery: Delivery) -> None:
    """Report a missing page, in a thread; the first attempt fails, as if the receiver were away."""
    if delivery.attempts == 0:
        raise ConnectionError("nobody listens")
    missing[path] += 1


def messages(log: Path) -> Iterator[Message]:
    """Yield a message for each line, with what the line says."""
    with log.open("rb") as lines:
        for line in lines:
            if found := LINE.match(line.decode(errors="replace")):
                request: dict[str, str | int] = {
                    "method": found["method"],
                    "path": found["path"],
                    "status": int(found["status"]),
                }
                request["size"] = int(found["size"]) if found["size"].isdigit() else found["size"]
                yield Message(msgspec.json.encode(request), fairness_key=found["address"])


async def work_off(client: Client) -> None:
    """Work until both queues are empty: a program that serves for ever calls `app.run()` instead."""
    stop = Stop()
    working = asyncio.create_task(app.work(stop=stop))
    while not working.done():
        await asyncio.sleep(0.05)
        if all(client.queue_stats(queue).depth == 0 for queue in (REQUESTS, MISSING)):
            stop.ask()
            await working
    working.result()


def main() -> int:
    """Run the example against a running broker."""
    parser = argparse.ArgumentParser(description="Handlers on a real access log")
    parser.add_argument("log", type=Path, help="an access log in Apache's combined format")
    arguments = parser.parse_args()
    logging.getLogger("fila_cluster.app").setLevel(
        logging.CRITICAL
    )  # a line for each failed attempt: here they are meant to fail
    try:
        sent = list(messages(arguments.log))
        with Client() as client:
            for queue in (REQUESTS, MISSING):
                if any(known.name == queue for known in client.list_queues(queue)):
                    client.delete_queue(queue, force=True)
                client.create_queue(queue)
            client.enqueue_many(REQUESTS, sent)
            began = time.monotonic()
            asyncio.run(work_off(client))
            took_s = time.monotonic() - began
            letters, dead = client.browse(f"{REQUESTS}.dlq", limit=1), client.queue_stats(f"{REQUESTS}.dlq").depth
            for queue in (REQUESTS, MISSING):
                client.delete_queue(queue, force=True)
    except (FilaError, OSError) as error:
        print(f"handlers: {error}", file=sys.stderr)
        return 1
    print(f"{totals.total():,} requests: " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(totals.items())))
    print(f"{missing.total():,} reports of missing pages, each at its second attempt; the most wanted:")
    for path, wanted in missing.most_common(3):
        print(f"  {wanted:4} {path[:90]}")
    print(f"{dead:,} dead letters" + (f", such as: {letters[0].error}" if letters else ""))
    print(f"{(totals + missing).total() / took_s:,.0f} messages a second", file=sys.stderr)
    return 0 if totals.total() + dead == len(sent) else 1


if __name__ == "__main__":
    sys.exit(main())
