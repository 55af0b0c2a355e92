"""kill -9 at the moment in which schedules are due, again and again: each due time must have exactly one message.

Two workers have a shard each. Three schedules are due every second: one on the shard of its queue, one on the other shard,
and one by a cron expression. In each round a worker, or both, are killed up to 50 ms before or after a due time. At the end
the messages are received, and their due times compared with those that must be there.
"""

import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.harness.report.results import Verified
from benchmarks.harness.workload import Benchmark, Run, number
from fila_cluster import Client, Schedule
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.cluster.faults import kill, processes, queue_on

SECOND = timedelta(seconds=1)
AROUND_S = 0.05
"""How far from the due time a worker is killed at most."""
CLIENT_S = 60.0
TABLE = "Due times"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    kills: int = number("Kills.")
    seed: int = number("Seed of the moments and of the victims.", 1)


@dataclass
class Found:
    """The due times that must have a message, and the messages that there are, by schedule and due time."""

    wanted: set[tuple[str, datetime]] = field(default_factory=set)
    seen: Counter[tuple[str, datetime]] = field(default_factory=Counter)

    @property
    def lost(self) -> list[tuple[str, datetime]]:
        """Due times without a message."""
        return sorted(self.wanted - self.seen.keys())

    @property
    def twice(self) -> list[tuple[str, datetime]]:
        """Due times with several messages."""
        return sorted(due for due, count in self.seen.items() if count > 1)


def kill_when_due(scale: Scale, data_dir: Path) -> Found:
    """Run the cluster and kill its workers; return what came of the schedules."""
    chance, found = random.Random(scale.seed), Found()
    with running(data_dir, "--shards", 2, workers=2) as cluster:
        with cluster.client(CLIENT_S) as client:
            queue = queue_on(client, 0)
            schedules = [_put(client, queue, shard, rule) for shard, rule in ((0, "every"), (1, "every"), (1, "cron"))]
        for _ in range(scale.kills):
            due_s = chance.choice(schedules).created_at.timestamp() % 1  # cron expressions are due at whole seconds
            due_s = chance.choice([due_s, 0.0])
            victims = chance.choice([("worker-0",), ("worker-1",), ("worker-0", "worker-1")])
            _sleep_until_due(due_s + chance.uniform(-AROUND_S, AROUND_S))
            before = {name: process.pid for name, process in processes(cluster).items()}
            kill(cluster, *victims)
            eventually(lambda: _are_back(cluster, before, victims), "the workers are back", CLIENT_S)  # noqa: B023
        with cluster.client(CLIENT_S) as client:
            for schedule in schedules:
                found.wanted |= {(schedule.name, due) for due in _end(client, schedule)}
            for name, due in _messages(client, queue):
                found.seen[name, due] += 1
        cluster.stop()
    return found


def _are_back(cluster: Cluster, before: dict[str, int], victims: tuple[str, ...]) -> bool:
    now = processes(cluster)
    return all(name in now and now[name].pid != before[name] for name in victims) and cluster.all_up()


def _put(client: Client, queue: str, shard: int, rule: str) -> Schedule:
    """Put a schedule on a certain shard."""
    for attempt in range(100):
        name = f"{rule}-{shard}-{attempt}"
        times: dict[str, object] = {"every": 1.0} if rule == "every" else {"cron": "* * * * * *"}
        schedule = client.put_schedule(name, queue, catch_up="all", **times)  # type: ignore[arg-type]
        if schedule.shard == shard:
            return schedule
        client.delete_schedule(name)
    raise AssertionError(f"100 names, and none on shard {shard}")


def _sleep_until_due(part_s: float) -> None:
    """Sleep until a part of the next second but one."""
    now_s = time.time()
    time.sleep(int(now_s) + 2 + part_s - now_s)


def _end(client: Client, schedule: Schedule) -> Iterator[datetime]:
    """Let a schedule catch up, and delete it. Yield the due times that it must have carried out."""
    asked_at = datetime.now(UTC)

    def caught_up() -> bool:
        now = client.get_schedule(schedule.name)
        return now is not None and now.last_due_at is not None and now.last_due_at > asked_at

    eventually(caught_up, f"{schedule.name} has caught up", CLIENT_S)
    last = client.get_schedule(schedule.name)
    assert last is not None
    assert last.last_due_at is not None
    assert schedule.next_due_at is not None
    client.delete_schedule(schedule.name)
    due = schedule.next_due_at
    while due <= last.last_due_at:
        yield due
        due += SECOND


def _messages(client: Client, queue: str) -> Iterator[tuple[str, datetime]]:
    while got := client.receive(queue, 500, wait=1.0):
        for delivery in got:
            yield delivery.headers["fila-schedule"], datetime.fromisoformat(delivery.headers["fila-due-at"])
        client.ack(got)


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    with warnings.catch_warnings(), run.directory() as directory:
        warnings.simplefilter("ignore", ResourceWarning)
        found = kill_when_due(run.scale, directory / "data")
    counts = {"without a message": len(found.lost), "with several messages": len(found.twice)}
    run.figure(TABLE, "kills", "fila-cluster", "", run.scale.kills)
    run.figure(TABLE, "due times", "fila-cluster", "", len(found.wanted))
    for name, count in counts.items():
        run.figure(TABLE, name, "fila-cluster", "", count)
    run.promise(f"due times without a message: {found.lost[:3]}, none may be", not found.lost)
    run.promise(f"due times with several messages: {found.twice[:3]}, none may be", not found.twice)
    run.verified.add(Verified(len(found.wanted), sum(found.seen.values()), len(found.lost), len(found.twice)))


BENCHMARK = Benchmark("schedules", measure, Scale(2), Scale(20), Scale(100))
