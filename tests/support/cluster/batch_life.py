"""One batch over the shards of a real cluster, whose processes are killed meanwhile, and what became of it."""

import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually
from tests.support.cluster.faults import queue_on

DONE = "batch-done"
CHUNK = 250
FAILING = 20
"""Each message whose number is a multiple of it fails, and becomes a dead letter."""
QUIET_S = 2.0
"""How long to wait for a second callback."""


@dataclass
class BatchLife:
    """What was found out. ``callbacks``: the headers of each callback; ``open_then``: messages in the queues when the first came."""

    members: int
    callbacks: list[dict[str, str]] = field(default_factory=list)
    open_then: int = 0
    dead_letters: int = 0
    kills: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts of the first callback: total, acked, dead, removed."""
        return tuple(int(self.callbacks[0][f"fila-batch-{name}"]) for name in ("total", "acked", "dead", "removed"))

    @property
    def expected(self) -> tuple[int, ...]:
        """What they should be."""
        dead = -(-self.members // FAILING)
        return self.members, self.members - dead, dead, 0


def live(cluster: Cluster, members: int, shards: int, kills: int, chance: random.Random) -> BatchLife:
    """Enqueue a batch into a queue of each shard, work on it, and kill a worker or the router ``kills`` times."""
    life, stop, begun = BatchLife(members), threading.Event(), time.monotonic()
    with cluster.client() as client:
        queues = [queue_on(client, shard, f"batch-members-{shard}", visibility_timeout=3) for shard in range(shards)]
        client.create_queue(DONE, visibility_timeout=3)
        workers = [threading.Thread(target=_work, args=(cluster.endpoint, queue, stop)) for queue in queues]
        for worker in workers:
            worker.start()
        moments = sorted(chance.sample(range(members // CHUNK), min(kills // 2 + kills % 2, members // CHUNK)))
        with client.batch(Message(b"all done"), DONE, name="import") as batch:
            for number, first in enumerate(range(0, members, CHUNK)):
                if number in moments:
                    life.kills.append(_kill(cluster, chance))
                some = range(first, min(members, first + CHUNK))
                messages = [Message(b"%d" % each, dedup_id=f"{begun}-{each}", fairness_key=f"k{each % 7}") for each in some]
                batch.enqueue_many(queues[number % shards], messages)
        while len(life.kills) < kills:
            life.kills.append(_kill(cluster, chance))
        _wait_for_callbacks(client, queues, life)
        stop.set()
        for worker in workers:
            worker.join()
        life.dead_letters = sum(client.queue_stats(f"{queue}.dlq").depth for queue in queues)
    life.seconds = time.monotonic() - begun
    return life


def _wait_for_callbacks(client: Client, queues: list[str], life: BatchLife) -> None:
    ids: set[str] = set()

    def come() -> bool:
        with suppress(FilaError):
            for delivery in client.receive(DONE, 10, wait=0.2):
                if delivery.id not in ids:
                    life.callbacks.append(delivery.headers)
                    ids.add(delivery.id)
                delivery.ack()
        return bool(ids)

    eventually(come, "the callback of a batch", 3 * PATIENCE_S)
    life.open_then = sum(client.queue_stats(queue).depth for queue in queues)
    again_at = time.monotonic() + QUIET_S
    while time.monotonic() < again_at:
        come()


def _work(endpoint: str, queue: str, stop: threading.Event) -> None:
    """Ack what comes, and fail some."""
    with Client(endpoint, timeout=PATIENCE_S) as client:
        while not stop.is_set():
            with suppress(FilaError):
                deliveries = client.receive(queue, 100, wait=0.2)
                failing = [each for each in deliveries if int(each.payload) % FAILING == 0]
                client.ack([each for each in deliveries if each not in failing])
                for delivery in failing:
                    delivery.fail("it is to fail")


def _kill(cluster: Cluster, chance: random.Random) -> str:
    """Kill a process of the cluster that clients need, and go on at once."""
    victims = []
    for child in cluster.children():
        with suppress(psutil.Error):
            words = child.cmdline()
            victims += [(child, name) for name in ("fila_worker", "fila_router") if name in words]
    victim, name = chance.choice(sorted(victims, key=lambda pair: pair[0].pid))
    victim.kill()
    return name
