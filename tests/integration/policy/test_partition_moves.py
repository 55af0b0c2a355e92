"""Another number of partitions under load, while workers are killed: nothing is lost or doubled, and each key keeps its order."""

import threading
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running, settling_may_fail

pytestmark = pytest.mark.whole

QUEUE = "moving"
KEYS = 20
PRODUCERS, CONSUMERS = 2, 3
KILLS = 10
NUMBERS = (8, 3)


@dataclass
class Log:
    """What was confirmed, by key: the last number of a message, and the numbers of acked ones in their order."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    acked: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def counts(self) -> tuple[int, int]:
        """How many messages are in, and how many are done."""
        with self.lock:
            return sum(self.sent.values()), sum(map(len, self.acked.values()))


def produce(client: Client, keys: list[str], log: Log, stop: threading.Event) -> None:
    """Enqueue the messages of some keys, each until it is confirmed."""
    while not stop.wait(0.005):
        for key in keys:
            number = log.sent[key]
            while True:
                with suppress(FilaError):
                    client.enqueue(QUEUE, b"%d" % number, fairness_key=key, dedup_id=f"{key} {number}")
                    break
            with log.lock:
                log.sent[key] = number + 1


def consume(client: Client, log: Log, stop: threading.Event) -> None:
    """Ack everything, and note what was confirmed."""
    while not stop.is_set():
        with suppress(FilaError), client.consume(QUEUE, prefetch=10) as consumer:
            while not stop.is_set():
                delivery = consumer.take(0.2)
                if delivery is not None:
                    with log.lock:  # before the ack is confirmed nobody gets the next one of its key
                        delivery.ack()
                        log.acked[delivery.fairness_key].append(int(delivery.payload))


def kill_workers(cluster: Cluster, count: int) -> None:
    """Kill workers in turn, each once all are up."""
    for turn in range(count):
        eventually(lambda turn=turn: _kill_worker(cluster, turn), "a worker to kill")  # type: ignore[misc]


def _kill_worker(cluster: Cluster, turn: int) -> bool:
    """Kill a worker, unless the status is from before the end of the last one."""
    workers = cluster.status().workers
    if any(worker.state != "up" or not psutil.pid_exists(worker.pid) for worker in workers):
        return False
    with suppress(psutil.NoSuchProcess):  # it ended a moment ago
        psutil.Process(workers[turn % len(workers)].pid).kill()
        return True
    return False


def _change(client: Client, partitions: int) -> bool:
    """Change the number of partitions. A shard that is away at the moment is asked again."""
    try:
        client.update_queue(QUEUE, partitions=partitions)
    except FilaError as error:
        if not error.retryable:
            raise
        return False
    return True


@settling_may_fail
def test_one_to_eight_to_three_partitions_under_load_with_kills(tmp_path: Path):
    log, stop, enough = Log(), threading.Event(), threading.Event()
    with ExitStack() as stack:
        cluster = stack.enter_context(running(tmp_path / "data", "--shards", "4", workers=2))
        operator = stack.enter_context(cluster.client())
        operator.create_queue(QUEUE, max_in_flight_per_key=1, visibility_timeout=600)
        names = [f"k{number}" for number in range(KEYS)]
        threads = []
        for number in range(PRODUCERS):
            client = stack.enter_context(cluster.client())
            threads.append(threading.Thread(target=produce, args=(client, names[number::PRODUCERS], log, enough)))
        for _ in range(CONSUMERS):
            client = stack.enter_context(cluster.client())
            threads.append(threading.Thread(target=consume, args=(client, log, stop)))
        for thread in threads:
            thread.start()
        try:
            for number in NUMBERS:
                eventually(lambda number=number: _change(operator, number), "the change")  # type: ignore[misc]
                kill_workers(cluster, KILLS // len(NUMBERS))
            enough.set()
            eventually(lambda: log.counts[0] == log.counts[1], lambda: f"all that was sent is done: {log.counts}")
        finally:
            enough.set()
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        eventually(lambda: not _is_moving(operator), "the end of the move")
    assert log.acked == {key: [*range(count)] for key, count in log.sent.items()}


def _is_moving(client: Client) -> bool:
    client.queue_stats(QUEUE)  # it learns the plan
    plan = client._session.plans.get(QUEUE)
    return plan is None or plan.earlier != 0
