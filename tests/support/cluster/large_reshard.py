"""``python -m tests.support.cluster.large_reshard DIR``: 200,000 messages in 60 queues, 2 → 5 → 3 shards, killed 20 times.

Each transition is killed ten times at steps by chance, half of them together with the process that copies. Then everything that
queues have must be as before: ids, order, attempts, errors, due times, dedup ids, config.
"""

import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from fila_proto_zmq.commands import Enqueue, Verb
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.keys import FIRST, LAST, u32
from fila_worker.core.model.due_index import DELAYED_HEAD_BYTES
from fila_worker.core.model.ledger import decode_lane
from fila_worker.core.model.queues import decode_queue
from fila_worker.storage.memory import MemoryStore
from tests.faults.test_reshard import run
from tests.support.shard.random_cluster import RandomCluster, persist, stored

QUEUES, MESSAGES, BATCH = 60, 200_000, 200
KILLS, STEPS = 10, 150


def filled() -> RandomCluster:
    """Two shards with the messages: of many keys and priorities, delayed, with dedup ids, after failed attempts."""
    random_cluster, chance = RandomCluster([MemoryStore(), MemoryStore()]), Random(1)
    for number in range(QUEUES):
        random_cluster.home(f"q{number}").create(f"q{number}")
    random_cluster.configure("greeting", "hello")
    for batch in range(MESSAGES // BATCH):
        queue = f"q{batch % QUEUES}"
        names = [f"{batch}-{number}" for number in range(BATCH)]
        command = Enqueue(
            [seal_envelope(name.encode() * 10) for name in names],
            [f"k{chance.randrange(50)}" for _ in names],
            priority=[chance.choice([0, 0, 5]) for _ in names],
            delay_ms=[chance.choice([0, 0, 0, 3_600_000]) for _ in names],
            dedup_id=names if batch % 3 == 0 else "",
        )
        random_cluster.home(queue).ask(command, queue, b"p")
        if batch % 5 == 0:
            got = random_cluster.home(queue).receive(20, queue)
            random_cluster.home(queue).settle(Verb.FAIL if batch % 2 else Verb.NACK, got, queue, error="boom")
    return random_cluster


def contents(stores: list[MemoryStore]) -> dict[str, Any]:
    """What each queue has: its messages by lane in order, its delayed messages, its dedup ids."""
    found: dict[str, Any] = defaultdict(list)
    for index, store in enumerate(stores):
        families = store.families
        records = {u32(key): decode_queue(data) for key, data in store.scan(FIRST, LAST, families.queues)}
        names = {number: record.name for number, record in records.items()}
        assert all(shard_of(name, len(stores)) == index for name in names.values())
        lanes = {}
        for key, data in store.scan(FIRST, LAST, families.lanes):
            lane = decode_lane(data)
            lanes[key] = (names[lane.queue], lane.fairness_key, tuple(lane.throttle_keys), lane.weight)
        for part, family in (("pending", families.messages), ("delayed", families.delayed)):
            for key, value in store.scan(FIRST, LAST, family):
                found[f"{part} {lanes[key[:8]]}"].append((key[8:], value))
                assert part == "pending" or len(value) > DELAYED_HEAD_BYTES
        for key, value in store.scan(FIRST, LAST, families.dedup):
            found[f"dedup {names[u32(key)]}"].append((key[4:], value))
        config = dict(store.scan(FIRST, LAST, families.config))
        assert found.setdefault("config", config) == config
    return dict(found)


def main(data_dir: Path) -> None:
    """Fill a data directory, reshard it twice, and compare."""
    random_cluster, chance = filled(), Random(2)
    for station in random_cluster.linked.stations.values():
        station.restart()
    expected = contents(random_cluster.copy())
    messages = sum(len(each) for name, each in expected.items() if name.startswith(("pending", "delayed")))
    print(f"{messages:,} messages, {sum(len(v) for n, v in expected.items() if n.startswith('dedup')):,} dedup ids")
    persist(random_cluster.copy(), data_dir)
    for after in (5, 3):
        kills, began = 0, time.monotonic()
        while not run(data_dir, after, chance.randint(1, STEPS) if kills < KILLS else 0, whole=chance.random() < 0.5):
            kills += 1
        took_s = time.monotonic() - began
        same = contents(stored(data_dir)) == expected
        print(f"→ {after} shards: killed {kills} times, {took_s:.1f} s in all, the same: {same}")
        assert same


if __name__ == "__main__":
    main(Path(sys.argv[1]))
